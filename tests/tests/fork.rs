//! A process that embeds an engine forks, as loaders of training data do: the child gets errors at once, and
//! the parent notices nothing.

use std::time::{Duration, Instant};

use s3engine::{ErrorKind, Get, Memory, Path, Policy, PoolError, Reason};
use s3engine_tests::{PATIENCE, Rig, ServiceRig, block_on};
use s3sim::{Action, Kind, Rule, content};

const KEY: &str = "300KiB-fork";
const SIZE: u64 = 300 << 10;

/// Runs `work` in a forked child. Returns whether it came to its end, within bounds.
fn in_child(work: impl FnOnce()) -> bool {
    // SAFETY: the child runs only this thread, and leaves by `_exit`: no destructor of the parent's threads and
    // no code of the test harness runs in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
        // SAFETY: as above.
        unsafe { libc::_exit(if ended { 0 } else { 1 }) }
    }
    let began = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call, and the child is this function's own.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if waited == pid {
            return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
        }
        if began.elapsed() > PATIENCE {
            // SAFETY: it is still a child, since it was not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_parent_works(rig: &Rig) {
    for policy in [Policy::RequireRdma, Policy::Http] {
        let completion = rig.get_whole(policy, KEY);
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    }
}

#[test]
fn every_handle_in_a_child_returns_an_error_at_once_and_the_parent_goes_on() {
    let slow = Rule::new(Action::AnswerLate { ms: 700 })
        .only(Kind::Http)
        .key("1MiB-slow");
    let rig = Rig::new([slow]);
    assert_parent_works(&rig);
    let mut buffer = rig.buffer(SIZE);
    buffer.as_mut_slice().unwrap().fill(0x55);
    let mut queue = rig.queue();
    let under_way = Get::new("bench", "1MiB-slow").policy(Policy::Http);
    queue.push(under_way).unwrap();
    queue.submit();
    let future = rig
        .engine
        .get(Get::new("bench", "1MiB-slow").policy(Policy::Http));

    let mut inherited = Some((buffer, queue, future));
    let parents = rig.engine.clone();
    let ended = in_child(|| {
        let (mut buffer, mut queue, future) = inherited.take().unwrap();
        let pool = parents.pool();
        assert!(matches!(
            pool.try_alloc(1, Memory::Host),
            Err(PoolError::Forked)
        ));
        assert!(buffer.as_mut_slice().is_none() && buffer.as_slice().is_none());
        let lost = queue.next(PATIENCE).unwrap().unwrap();
        assert_eq!(lost.reason(), Reason::ServiceLost);
        queue.push(Get::new("bench", KEY).into(buffer)).unwrap();
        queue.submit();
        let lost = queue.next(PATIENCE).unwrap().unwrap();
        assert_eq!(
            (lost.path(), lost.reason()),
            (Path::None, Reason::ServiceLost)
        );
        assert!(lost.error().unwrap().to_string().contains("forked"));
        assert_eq!(block_on(future).reason(), Reason::ServiceLost);
        assert_eq!(
            block_on(parents.get(Get::new("bench", KEY))).reason(),
            Reason::ServiceLost
        );
        let error = block_on(parents.head("bench", KEY)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Service(_)));
        drop((lost, queue, parents.clone()));
    });
    assert!(ended, "the child did not come to its end");

    let (buffer, mut queue, future) = inherited.unwrap();
    assert!(buffer.as_slice().unwrap().iter().all(|byte| *byte == 0x55));
    assert!(queue.next(PATIENCE).unwrap().unwrap().is_ok());
    assert!(block_on(future).is_ok());
    assert_parent_works(&rig);
    drop((buffer, queue, parents));
    rig.assert_drains();
}

#[test]
fn a_clients_handles_in_a_child_return_errors_and_the_child_can_attach_by_itself() {
    let host = ServiceRig::new();
    let client = host.client();
    let mut buffer = client.pool().try_alloc(SIZE, Memory::Host).unwrap();
    buffer.as_mut_slice().unwrap().fill(0x55);
    let mut queue = client.queue(Default::default());
    queue.push(Get::new("bench", KEY)).unwrap();
    queue.submit();
    let future = client.get(Get::new("bench", KEY));
    let mut inherited = Some((buffer, queue, future));
    let parents = client.clone();
    let ended = in_child(|| {
        let (mut buffer, mut queue, future) = inherited.take().unwrap();
        assert!(matches!(
            parents.pool().try_alloc(1, Memory::Host),
            Err(PoolError::Forked)
        ));
        assert!(buffer.as_mut_slice().is_none() && buffer.as_slice().is_none());
        let lost = queue.next(PATIENCE).unwrap().unwrap();
        assert_eq!(lost.reason(), Reason::ServiceLost);
        queue.push(Get::new("bench", KEY).into(buffer)).unwrap();
        queue.submit();
        let lost = queue.next(PATIENCE).unwrap().unwrap();
        assert!(lost.error().unwrap().to_string().contains("forked"));
        assert_eq!(block_on(future).reason(), Reason::ServiceLost);
        assert!(block_on(parents.head("bench", KEY)).is_err());
        drop((lost, queue, parents.clone()));
        let own = host.client();
        let completion = block_on(own.get(Get::new("bench", KEY)));
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    });
    assert!(ended, "the child did not come to its end");
    let (buffer, mut queue, future) = inherited.unwrap();
    assert!(buffer.as_slice().unwrap().iter().all(|byte| *byte == 0x55));
    assert!(queue.next(PATIENCE).unwrap().unwrap().is_ok());
    assert!(block_on(future).is_ok());
    drop((buffer, queue, parents, client));
    host.assert_drains();
}

#[test]
fn a_child_can_drop_what_it_inherited_and_make_an_engine_of_its_own() {
    let rig = Rig::new([]);
    assert_parent_works(&rig);
    let url = rig.sim.url();
    let keys = s3engine_tests::credentials(rig.sim.access_key(), rig.sim.secret_key());
    let mut inherited = Some(rig);
    let ended = in_child(|| {
        // The simulator is not forgotten by itself: its threads are the parent's too.
        let Rig { engine, sim, .. } = inherited.take().unwrap();
        std::mem::forget(sim);
        drop(engine);
        let own = s3engine_tests::quick_builder(&url).credentials(keys);
        let own = own.build().unwrap();
        let completion = block_on(own.get(Get::new("bench", KEY).policy(Policy::Http)));
        content::verify(KEY, 0, 0, completion.data().unwrap()).unwrap();
    });
    assert!(ended, "the child did not come to its end");
    let rig = inherited.unwrap();
    assert_parent_works(&rig);
    rig.assert_drains();
}
