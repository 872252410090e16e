//! Both ends of a queue, each in its process.

use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use s3engine_ring::{
    Bell, Client, EventBell, Layout, Outcome, Service, SharedQueue, SocketBell, Taken,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::BATCH;
use super::wait::{BOUND, Wait, spin, watched};

/// Requests that a queue has room for.
pub const ENTRIES: u32 = 1024;

/// Requests that the engine takes before it shows their completions.
const TURN: u32 = 64;

fn layout() -> Layout {
    Layout::new(ENTRIES).expect("a power of two")
}

/// The client's end.
pub struct Asking {
    client: Client,
    heard: SocketBell,
    rung: EventBell,
}

impl Asking {
    /// Maps what the service has sent.
    pub fn new(client: &OwnedFd, service: &OwnedFd, heard: OwnedFd, rung: OwnedFd) -> Self {
        let client = Client::import(layout(), client.as_fd(), service.as_fd());
        Self {
            client: client.expect("the regions of a queue"),
            heard: SocketBell::from_fd(heard),
            rung: EventBell::from_fd(rung),
        }
    }

    /// Times of so many trips there and back, one at a time.
    pub fn trips(&mut self, wait: Wait, count: u32) -> Vec<Duration> {
        let mut last = Instant::now();
        let one = |_| {
            self.submit(1);
            let mut reaped = 0;
            while reaped == 0 {
                reaped = self.take(wait);
            }
            let now = Instant::now();
            now - std::mem::replace(&mut last, now)
        };
        (0..count).map(one).collect()
    }

    /// How long so many take in batches, at most `window` in flight.
    pub fn stream(&mut self, wait: Wait, window: u32, count: u32) -> Duration {
        let began = Instant::now();
        let (mut submitted, mut reaped) = (0, 0);
        while reaped < count {
            while submitted < count && submitted - reaped + BATCH <= window {
                self.submit(BATCH);
                submitted += BATCH;
            }
            reaped += self.take(wait);
        }
        began.elapsed()
    }

    fn submit(&mut self, count: u32) {
        for n in 0..count {
            self.client.push_nop(n.into()).expect("room");
        }
        if self.client.submit(0) {
            self.rung.ring().expect("the service is there");
        }
    }

    /// Takes the completions that are there, up to a batch; waits for them if there are none.
    fn take(&mut self, wait: Wait) -> u32 {
        if wait == Wait::Spin {
            return spin(|| Some(self.reap()).filter(|count| *count > 0));
        }
        match self.reap() {
            0 => {
                let ready = self.client.wait(BATCH, BOUND, &self.heard);
                assert!(ready.expect("an honest service") > 0, "a wake was lost");
                self.reap()
            }
            reaped => reaped,
        }
    }

    fn reap(&mut self) -> u32 {
        let mut reaped = 0;
        while reaped < BATCH
            && let Some(completion) = self.client.reap().expect("an honest service")
        {
            black_box(completion.cqe);
            reaped += 1;
        }
        reaped
    }
}

/// The service's end.
pub struct Answering {
    service: Service,
    /// What the client hears, and what it rings.
    back: SocketBell,
    rung: Arc<EventBell>,
}

impl Answering {
    /// Makes a queue. Returns what the client gets too: its region, the service's, and its ends of both
    /// bells.
    pub fn create() -> (Self, [OwnedFd; 4]) {
        let shared = SharedQueue::create(layout()).expect("memory");
        let (near, far) = SocketBell::pair().expect("a socket pair");
        let own = Self {
            service: shared.service,
            back: near,
            rung: Arc::new(EventBell::new().expect("an eventfd")),
        };
        let rung = own.rung.share().expect("the same eventfd");
        let (client, service) = (shared.client_region, shared.service_region);
        (own, [client, service, far.into_fd(), rung])
    }

    /// Answers so many requests.
    pub fn answer(&mut self, wait: Wait, count: u32, runtime: &Runtime) {
        match wait {
            Wait::Spin => self.answer_spinning(count),
            Wait::Poll => self.answer_poll(count),
            Wait::Epoll => runtime.block_on(self.answer_epoll(count)),
        }
    }

    fn answer_spinning(&mut self, count: u32) {
        let mut served = 0;
        while served < count {
            served += spin(|| Some(self.serve()).filter(|count| *count > 0));
        }
    }

    fn answer_poll(&mut self, count: u32) {
        let mut served = 0;
        while served < count {
            let now = self.serve();
            served += now;
            if now == 0 && self.service.park(1).expect("an honest client") {
                self.rung.wait(BOUND).expect("an eventfd");
            }
        }
    }

    /// As the engine does: one task that hears the bell and passes it on, one that serves.
    async fn answer_epoll(&mut self, count: u32) {
        let (bell, rung) = (Arc::clone(&self.rung), Notify::new());
        let bell = watched(bell).expect("it can be watched");
        let hears = async {
            loop {
                bell.readable().await.expect("watched").clear_ready();
                rung.notify_one();
            }
        };
        let serves = async {
            let mut served = 0;
            while served < count {
                let now = self.serve();
                served += now;
                if now == 0 && self.service.park(1).expect("an honest client") {
                    let woken = tokio::time::timeout(BOUND, rung.notified()).await;
                    woken.expect("the client asks");
                }
            }
        };
        tokio::select! {
            () = hears => {}
            () = serves => {}
        }
    }

    /// Completes what there is, for one turn. Returns how many that were.
    fn serve(&mut self) -> u32 {
        let mut served = 0;
        while served < TURN
            && let Some(taken) = self.service.take().expect("an honest client")
        {
            let Taken::Nop(ticket) = taken else {
                panic!("not pushed: {taken:?}");
            };
            let done = self.service.complete(ticket, &Outcome::default(), None);
            done.expect("an honest client");
            served += 1;
        }
        if self.service.publish() {
            self.back.ring().expect("the client is there");
        }
        served
    }
}
