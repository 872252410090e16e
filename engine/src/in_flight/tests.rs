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
    in_flight.admission.change(|state| state.turns.load())
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

const REFUSED: Option<Ending> = Some(Ending::Refused {
    cause: adapt::Cause::SlowDown,
    retry_after: None,
});

fn window(in_flight: &InFlight) -> usize {
    in_flight.concurrency().unwrap().requests
}

#[test]
fn an_endpoint_that_refuses_gets_fewer_and_the_one_beside_it_as_many_as_before() {
    let (first, share) = alone(16, 1 << 30);
    let second = first.beside();
    let other = second.share(NonZeroU32::MIN, Limits::NONE);
    first.adapt("http://x");
    second.adapt("http://y");
    let mut running: Vec<_> = (0..14).map(|_| admitted(&share, 1)).collect();
    for permit in &mut running {
        permit.ended(Duration::ZERO, REFUSED);
    }
    drop(running);
    assert_eq!((window(&first), window(&second)), (7, 16));
    let _running: Vec<_> = (0..7).map(|_| admitted(&share, 1)).collect();
    let _eighth = Asking::waiting(&share, 1);
    let _others: Vec<_> = (0..7).map(|_| admitted(&other, 1)).collect();
}

#[test]
fn what_tells_nothing_of_the_endpoint_and_what_is_not_learned_change_nothing() {
    let (in_flight, share) = alone(4, 1 << 30);
    let mut permit = admitted(&share, 1);
    permit.ended(Duration::ZERO, REFUSED);
    assert_eq!(in_flight.concurrency(), None);
    in_flight.adapt("http://x");
    permit.ended(Duration::ZERO, None);
    assert_eq!(window(&in_flight), 4);
}

#[tokio::test]
async fn a_request_in_backoff_holds_no_place_and_comes_back_before_later_ones() {
    let (in_flight, share) = alone(1, 16 * MIB);
    let mut permit = admitted(&share, MIB);
    let mut second = Asking::waiting(&share, MIB);
    let mut third = Asking::waiting(&share, MIB);
    let mut backing_off = pin!(permit.back_off(Duration::ZERO));
    let asks = tokio::time::timeout(Duration::from_millis(50), backing_off.as_mut());
    assert!(asks.await.is_err(), "it waits for its turn");
    let second = second.permit();
    drop(second);
    assert!(third.poll().is_pending(), "it came later");
    assert!(backing_off.await);
    assert!(third.poll().is_pending(), "the permit is the other's again");
    assert_eq!(load(&in_flight).requests, 1);
}

#[tokio::test]
async fn a_place_that_was_refused_rests_and_holds_nothing_of_the_host() {
    let (in_flight, share) = alone(2, 16 * MIB);
    in_flight.adapt("http://x");
    let mut permit = admitted(&share, MIB);
    permit.ended(Duration::ZERO, REFUSED);
    permit.ended(Duration::ZERO, REFUSED);
    drop(permit);
    let _one = admitted(&share, MIB);
    let mut another = Asking::waiting(&share, MIB);
    assert_eq!(load(&in_flight).requests, 1);
    let back = tokio::time::timeout(Duration::from_secs(60), another.future.as_mut());
    assert!(back.await.unwrap().is_some());
}

#[tokio::test]
async fn the_end_of_the_engine_ends_a_backoff() {
    let (in_flight, share) = alone(1, 16 * MIB);
    let mut permit = admitted(&share, 1);
    in_flight.close();
    assert!(!permit.back_off(Duration::from_secs(1)).await);
}

/// The parts of a large object ask one after the other, each when the one before it was admitted.
#[test]
fn small_requests_of_a_client_go_between_the_parts_of_its_largest_object() {
    let (_in_flight, share) = alone(8, 1 << 30);
    let mut parts: Vec<_> = (0..8).map(|_| admitted(&share, 8 * MIB)).collect();
    let mut next_part = Asking::waiting(&share, 8 * MIB);
    let mut small: Vec<_> = (0..100).map(|_| Asking::waiting(&share, 1)).collect();
    // The part that was there first, then the small ones in order; the next part waits behind them all.
    drop(parts.remove(0));
    parts.push(next_part.permit());
    let mut next_part = Asking::waiting(&share, 8 * MIB);
    for asking in &mut small {
        drop(parts.pop());
        let permit = asking.permit();
        assert!(next_part.poll().is_pending());
        parts.push(permit);
    }
    drop(parts.pop());
    next_part.permit();
}
