use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

const MIB: u64 = 1 << 20;

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// An admission on its way, polled by hand.
struct Asking<'a> {
    future: std::pin::Pin<Box<dyn Future<Output = Option<Permit>> + 'a>>,
    bell: Arc<Bell>,
}

impl<'a> Asking<'a> {
    fn new(share: &'a Share, bytes: u64) -> Self {
        let future = Box::pin(share.admit(bytes));
        let bell = Arc::default();
        Self { future, bell }
    }

    fn poll(&mut self) -> Poll<Option<Permit>> {
        let waker = Waker::from(Arc::clone(&self.bell));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// One that has to wait.
    fn waiting(share: &'a Share, bytes: u64) -> Self {
        let mut asking = Self::new(share, bytes);
        assert!(asking.poll().is_pending(), "{bytes} bytes must wait");
        asking
    }

    fn times_woken(&self) -> usize {
        self.bell.0.load(Ordering::SeqCst)
    }

    fn permit(&mut self) -> Permit {
        match self.poll() {
            Poll::Ready(Some(permit)) => permit,
            Poll::Ready(None) => panic!("refused"),
            Poll::Pending => panic!("still waits"),
        }
    }
}

fn admitted(share: &Share, bytes: u64) -> Permit {
    Asking::new(share, bytes).permit()
}

fn alone(requests: usize, bytes: u64) -> (InFlight, Share) {
    let in_flight = InFlight::new(Limits { requests, bytes });
    let share = in_flight.share(NonZeroU32::MIN, Limits::NONE);
    (in_flight, share)
}

fn load(in_flight: &InFlight) -> turns::Load {
    in_flight.0.change(|state| state.turns.load())
}

#[test]
fn bytes_and_requests_are_bounded_and_come_back() {
    let (in_flight, share) = alone(3, 16 * MIB);
    let a = admitted(&share, 10 * MIB);
    let b = admitted(&share, 6 * MIB);
    let mut third = Asking::waiting(&share, 1);
    drop(a);
    let c = third.permit();
    let d = admitted(&share, 1);
    let mut fourth = Asking::waiting(&share, 0);
    drop((b, c, d));
    drop(fourth.permit());
    assert_eq!(load(&in_flight), turns::Load::default());
}

#[test]
fn a_request_larger_than_the_bound_runs_alone() {
    let (_in_flight, share) = alone(3, 16 * MIB);
    let small = admitted(&share, 1);
    let mut large = Asking::waiting(&share, u64::MAX);
    drop(small);
    let large = large.permit();
    let mut small = Asking::waiting(&share, 1);
    drop(large);
    small.permit();
}

#[test]
fn room_for_one_wakes_one_and_it_is_who_came_first() {
    let (_in_flight, share) = alone(1, 16 * MIB);
    let running = admitted(&share, 1);
    let mut asking: Vec<_> = (0..3).map(|_| Asking::waiting(&share, 1)).collect();
    drop(running);
    let woken: Vec<_> = asking.iter().map(Asking::times_woken).collect();
    assert_eq!(woken, [1, 0, 0]);
    drop(asking[0].permit());
    let woken: Vec<_> = asking.iter().map(Asking::times_woken).collect();
    assert_eq!(woken, [1, 1, 0]);
}

#[test]
fn who_gives_up_leaves_no_trace_and_lets_the_next_one_pass() {
    let (in_flight, share) = alone(8, 16 * MIB);
    let running = admitted(&share, 10 * MIB);
    let large = Asking::waiting(&share, 10 * MIB);
    let mut small = Asking::waiting(&share, MIB);
    drop(large);
    assert_eq!(small.times_woken(), 1, "only the one before it did not fit");
    drop((small.permit(), running));
    assert_eq!(load(&in_flight), turns::Load::default());
}

#[test]
fn a_permit_that_nobody_took_goes_to_the_next() {
    let (in_flight, share) = alone(1, 16 * MIB);
    let running = admitted(&share, 1);
    let first = Asking::waiting(&share, 1);
    let mut second = Asking::waiting(&share, 1);
    drop(running);
    assert_eq!((first.times_woken(), second.times_woken()), (1, 0));
    drop(first);
    assert_eq!(second.times_woken(), 1);
    drop(second.permit());
    assert_eq!(load(&in_flight), turns::Load::default());
}

#[test]
fn a_future_that_was_never_polled_holds_nothing() {
    let (in_flight, share) = alone(1, 16 * MIB);
    drop(share.admit(1));
    assert_eq!(load(&in_flight), turns::Load::default());
    admitted(&share, 1);
}

#[test]
fn bytes_that_were_not_moved_are_free_before_the_request_ends() {
    let (in_flight, share) = alone(8, 16 * MIB);
    let mut running = admitted(&share, 16 * MIB);
    let mut waiting = Asking::waiting(&share, 4 * MIB);
    running.refund(12 * MIB);
    let _other = waiting.permit();
    running.refund(15 * MIB);
    assert_eq!(
        load(&in_flight).bytes,
        16 * MIB,
        "a refund takes nothing back"
    );
    drop(running);
    assert_eq!(load(&in_flight).bytes, 4 * MIB);
}

#[test]
fn closing_refuses_all_who_wait_and_all_who_come() {
    let (in_flight, share) = alone(1, 16 * MIB);
    let running = admitted(&share, 1);
    let mut waiting = Asking::waiting(&share, 1);
    in_flight.close();
    assert_eq!(waiting.times_woken(), 1);
    assert!(matches!(waiting.poll(), Poll::Ready(None)));
    assert!(matches!(Asking::new(&share, 1).poll(), Poll::Ready(None)));
    drop(running);
    assert!(matches!(Asking::new(&share, 1).poll(), Poll::Ready(None)));
    assert_eq!(load(&in_flight), turns::Load::default());
}

#[test]
fn engines_beside_each_other_have_the_limits_together_until_the_last_one_closes() {
    let (first, share) = alone(1, 16 * MIB);
    let second = first.beside();
    let other = second.share(NonZeroU32::MIN, Limits::NONE);
    let running = admitted(&share, 1);
    let mut waiting = Asking::waiting(&other, 1);
    first.close();
    drop(running);
    drop(waiting.permit());
    second.close();
    assert!(matches!(Asking::new(&other, 1).poll(), Poll::Ready(None)));
}

#[test]
fn a_share_that_ends_leaves_its_room_to_the_others() {
    let (in_flight, share) = alone(8, 16 * MIB);
    let other = in_flight.share(NonZeroU32::MIN, Limits::NONE);
    let _running: Vec<_> = (0..7).map(|_| admitted(&share, MIB)).collect();
    let mut eighth = Asking::waiting(&share, 8 * MIB);
    let permit = admitted(&other, 1);
    drop(other);
    assert_eq!(
        eighth.times_woken(),
        0,
        "the permit is still of the other share"
    );
    drop(permit);
    assert_eq!(eighth.times_woken(), 1, "nobody is left to keep room for");
    eighth.permit();
}

#[test]
fn permits_pass_between_threads_and_all_come_back() {
    let in_flight = InFlight::new(Limits {
        requests: 4,
        bytes: 8 * MIB,
    });
    let held = AtomicUsize::new(0);
    let run = |share: Share, bytes: u64| {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            for nth in 0..500 {
                let permit = {
                    let mut asking = pin!(share.admit(bytes));
                    // Now and then one gives up after it was polled.
                    let once =
                        std::future::poll_fn(|context| match asking.as_mut().poll(context) {
                            Poll::Pending if nth % 7 == 0 => Poll::Ready(None),
                            Poll::Ready(permit) => Poll::Ready(permit),
                            Poll::Pending => Poll::Pending,
                        });
                    once.await
                };
                if permit.is_some() {
                    assert!(held.fetch_add(1, Ordering::SeqCst) < 4);
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, Ordering::SeqCst);
                }
            }
        });
    };
    std::thread::scope(|scope| {
        for nth in 0..6u64 {
            let share = in_flight.share(NonZeroU32::MIN, Limits::NONE);
            let run = &run;
            scope.spawn(move || run(share, 1 << (17 + nth)));
        }
    });
    assert_eq!(load(&in_flight), turns::Load::default());
}
