//! GET with a token, and every fault of it, against memory of this process.

mod support;

use std::time::Duration;

use s3engine_pool::Registrar;
use s3sim::{Action, SimOptions, content};
use support::memory::{KEY, MEMORY, OBJECT, SIZE, Setup, segment};
use support::{Client, PATIENCE, Reply, options};

fn rdma(reply: &Reply) -> (u16, Option<&str>, Option<&str>, usize) {
    let header = |name| reply.header(name);
    let (said, bytes) = (
        header("x-amz-rdma-reply"),
        header("x-amz-rdma-bytes-transferred"),
    );
    (reply.status, said, bytes, reply.body.len())
}

const WHOLE: (u16, Option<&str>, Option<&str>, usize) = (200, Some("200"), Some("3145728"), 0);

#[test]
fn a_whole_object_lands_in_memory_and_the_answer_only_says_so() {
    let setup = Setup::new([]);
    let reply = setup.get(&[]);
    assert_eq!(rdma(&reply), WHOLE);
    assert!(reply.header("etag").is_some() && reply.header("content-range").is_none());
    setup.assert_written();
    let counters = setup.sim.counters();
    assert_eq!(
        (counters.rdma_read_ops, counters.rdma_read_bytes),
        (1, SIZE as u64)
    );
    assert_eq!(counters.rdma_clients, 1);
    let text = Client::connect(&setup.sim).get("/minio/metrics/v3/api/rdma", &[]);
    let line = format!(
        "minio_api_rdma_read_bytes_total{{server=\"{}\"}} {SIZE}\n",
        setup.sim.addr()
    );
    assert!(text.text().contains(&line));
}

#[test]
fn a_range_lands_in_its_window_and_nowhere_else() {
    let setup = Setup::new([]);
    let token = setup.token(4096, 100_000);
    let headers = [
        ("x-amz-rdma-token", token.as_str()),
        ("Range", "bytes=2000000-2099999"),
    ];
    let reply = Client::connect(&setup.sim).get(OBJECT, &headers);
    assert_eq!(rdma(&reply), (206, Some("206"), Some("100000"), 0));
    assert_eq!(
        reply.header("content-range"),
        Some("bytes 2000000-2099999/3145728")
    );
    let bytes = setup.bytes();
    content::verify(KEY, 0, 2_000_000, &bytes[4096..104_096]).unwrap();
    assert!(
        bytes[..4096]
            .iter()
            .chain(&bytes[104_096..])
            .all(|&byte| byte == 0)
    );
}

#[test]
fn a_window_shorter_than_the_object_gets_its_start_as_a_206() {
    let setup = Setup::new([]);
    let token = setup.token(0, 1000);
    let reply = Client::connect(&setup.sim).get(OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    assert_eq!(rdma(&reply), (206, Some("206"), Some("1000"), 0));
    assert_eq!(reply.header("content-range"), Some("bytes 0-999/3145728"));
    assert!(setup.bytes()[1000..].iter().all(|&byte| byte == 0));
}

#[test]
fn an_empty_object_is_a_204_of_no_bytes() {
    let setup = Setup::new([]);
    let token = setup.token(0, 1000);
    let mut client = Client::connect(&setup.sim);
    let reply = client.get("/bench/0", &[("x-amz-rdma-token", token.as_str())]);
    assert_eq!(rdma(&reply), (204, Some("204"), Some("0"), 0));
    assert_eq!(setup.sim.counters().rdma_read_ops, 1);
}

#[test]
fn files_of_a_folder_land_too() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("b")).unwrap();
    let file: Vec<u8> = (0..2_500_000_u32).map(|i| (i % 253) as u8).collect();
    std::fs::write(root.path().join("b/f"), &file).unwrap();
    let setup = Setup::with(SimOptions {
        root: Some(root.path().into()),
        ..options()
    });
    let token = setup.token(0, MEMORY);
    let reply = Client::connect(&setup.sim).get("/b/f", &[("x-amz-rdma-token", token.as_str())]);
    assert_eq!(rdma(&reply), (200, Some("200"), Some("2500000"), 0));
    assert!(setup.bytes()[..file.len()] == file);
}

#[test]
fn errors_of_s3_come_before_anything_is_written() {
    let setup = Setup::new([]);
    for (target, header, status) in [
        ("/bench/nothing", ("a", "b"), 404),
        (OBJECT, ("Range", "bytes=99999999-"), 416),
        (OBJECT, ("If-Match", "\"x\""), 412),
    ] {
        let token = setup.token(0, MEMORY);
        let headers = [("x-amz-rdma-token", token.as_str()), header];
        let reply = Client::connect(&setup.sim).get(target, &headers);
        assert_eq!(
            (reply.status, reply.header("x-amz-rdma-reply")),
            (status, None)
        );
        assert!(reply.element("Code").is_some());
    }
    setup.assert_untouched();
}

#[test]
fn tokens_that_name_nothing_are_a_400() {
    let setup = Setup::new([]);
    let good = setup.token(0, 1000);
    let outside = {
        let mut token = s3engine_s3::token::Token::parse(&good).unwrap();
        token.address += MEMORY as u64;
        token.encode()
    };
    let stranger = {
        let mut token = s3engine_s3::token::Token::parse(&good).unwrap();
        token.gid = token.gid.map(|gid| gid.map(|byte| !byte));
        token.encode()
    };
    let unknown_key = {
        let mut token = s3engine_s3::token::Token::parse(&good).unwrap();
        token.rkey ^= 1;
        token.encode()
    };
    let old_form = format!("{good}:0000000000001000:0000000000001000");
    let empty = setup.token(0, 0);
    for token in [
        "",
        "x",
        &old_form,
        &good[1..],
        &outside,
        &stranger,
        &unknown_key,
        &empty,
    ] {
        let reply = Client::connect(&setup.sim).get(OBJECT, &[("x-amz-rdma-token", token)]);
        assert_eq!(
            (reply.status, reply.element("Code")),
            (400, Some("InvalidRDMAToken")),
            "{token}"
        );
        assert_eq!(reply.header("x-amz-rdma-reply"), None);
        assert!(
            token.len() < 40 || !reply.text().contains(&token[49..]),
            "the token was repeated"
        );
    }
    setup.assert_untouched();
    assert_eq!(setup.sim.counters().rdma_read_ops, 0);
}

#[test]
fn a_revoked_key_is_refused_and_a_new_registration_works() {
    let mut setup = Setup::new([]);
    let old = setup.token(0, MEMORY);
    assert_eq!(rdma(&setup.get(&[])), WHOLE);
    setup.owner.revoke(setup.handle, PATIENCE).unwrap();
    let reply = Client::connect(&setup.sim).get(OBJECT, &[("x-amz-rdma-token", old.as_str())]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (400, Some("InvalidRDMAToken"))
    );
    setup.handle = setup.owner.register(segment(&setup.fd)).unwrap();
    assert_eq!(rdma(&setup.get(&[])), WHOLE);
}

#[test]
fn a_server_without_the_feature_ignores_the_token() {
    let setup = Setup::with(SimOptions {
        rdma: false,
        ..options()
    });
    let reply = setup.get(&[]);
    assert_eq!(rdma(&reply), (200, None, None, SIZE));
    content::verify(KEY, 0, 0, &reply.body).unwrap();
    setup.assert_untouched();
}

#[test]
fn both_forms_of_a_decline_say_501() {
    let setup = Setup::faulty(Action::DeclineWithBody);
    let reply = setup.get(&[]);
    assert_eq!(rdma(&reply), (200, Some("501"), None, SIZE));
    content::verify(KEY, 0, 0, &reply.body).unwrap();
    setup.assert_untouched();

    let setup = Setup::faulty(Action::DeclineWithError);
    let reply = setup.get(&[]);
    assert_eq!(
        (reply.status, reply.header("x-amz-rdma-reply")),
        (501, Some("501"))
    );
    assert_eq!(reply.element("Code"), Some("NotImplemented"));
    setup.assert_untouched();
    assert_eq!(rdma(&setup.get(&[])), WHOLE, "the rule is spent");
}

#[test]
fn an_ignored_token_gives_the_body_or_nothing_at_all() {
    let setup = Setup::faulty(Action::IgnoreToken);
    assert_eq!(rdma(&setup.get(&[])), (200, None, None, SIZE));
    setup.assert_untouched();
    let setup = Setup::faulty(Action::IgnoreTokenEmpty);
    assert_eq!(rdma(&setup.get(&[])), (200, None, None, 0));
    setup.assert_untouched();
}

#[test]
fn lies_about_the_bytes_come_with_the_bytes_written() {
    for (value, delta, said) in [
        (Some(7), None, "7"),
        (None, Some(-1), "3145727"),
        (None, Some(i64::MIN), "-9223372036851630080"),
    ] {
        let setup = Setup::faulty(Action::WrongBytes { value, delta });
        assert_eq!(rdma(&setup.get(&[])), (200, Some("200"), Some(said), 0));
        setup.assert_written();
    }
    let setup = Setup::faulty(Action::MissingBytes);
    assert_eq!(rdma(&setup.get(&[])), (200, Some("200"), None, 0));
    setup.assert_written();
    let setup = Setup::faulty(Action::MissingReply);
    assert_eq!(rdma(&setup.get(&[])), (200, None, Some("3145728"), 0));
    setup.assert_written();
}

#[test]
fn a_claim_without_writing_leaves_memory_as_it_was() {
    let setup = Setup::faulty(Action::ClaimWithoutWriting);
    assert_eq!(rdma(&setup.get(&[])), WHOLE);
    setup.assert_untouched();
}

#[test]
fn a_rejected_token_has_the_forms_of_both_servers() {
    let setup = Setup::faulty(Action::TokenRejected);
    let reply = setup.get(&[]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (400, Some("InvalidRDMAToken"))
    );
    let setup = Setup::faulty(Action::TokenRejectedAistor);
    let reply = setup.get(&[]);
    assert_eq!(reply.status, 500);
    assert!(reply.element("Message").unwrap().contains("RDMA token"));
    setup.assert_untouched();
}

#[test]
fn a_failed_transfer_has_written_half() {
    let setup = Setup::faulty(Action::RdmaTransferFailed);
    let reply = setup.get(&[]);
    assert_eq!(
        (reply.status, reply.element("Code")),
        (500, Some("RDMATransferFailed"))
    );
    assert_eq!(reply.header("x-amz-rdma-reply"), None);
    let bytes = setup.bytes();
    content::verify(KEY, 0, 0, &bytes[..SIZE / 2]).unwrap();
    assert!(bytes[SIZE / 2..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_late_answer_comes_after_the_write() {
    let setup = Setup::faulty(Action::AnswerLate { ms: 1000 });
    let mut client = Client::connect(&setup.sim);
    let token = setup.token(0, MEMORY);
    client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    setup.wait(|counters| counters.rdma_read_ops == 1);
    setup.assert_written();
    client.assert_silent(Duration::from_millis(50));
    assert_eq!(rdma(&client.reply().unwrap()), WHOLE);
}

#[test]
fn a_late_write_lands_though_the_client_is_gone() {
    let setup = Setup::faulty(Action::WriteLate { ms: 100 });
    let mut client = Client::connect(&setup.sim);
    let token = setup.token(0, MEMORY);
    client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    drop(client);
    setup.wait(|counters| counters.late_writes_landed == 1);
    setup.assert_written();
    assert_eq!(setup.sim.counters().rdma_read_ops, 0);
}

#[test]
fn a_late_write_is_refused_after_a_revocation_and_the_connection_just_ends() {
    let setup = Setup::faulty(Action::WriteLate { ms: 1500 });
    let mut client = Client::connect(&setup.sim);
    let token = setup.token(0, MEMORY);
    client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    // From here on the server holds the mapping.
    setup.wait(|counters| counters.rdma_clients == 1);
    client.assert_silent(Duration::from_millis(50));
    setup.owner.revoke(setup.handle, PATIENCE).unwrap();
    setup.wait(|counters| counters.late_writes_refused == 1);
    setup.assert_untouched();
    let (bytes, end) = client.rest();
    assert!(bytes.is_empty() && end.is_ok());
}

#[test]
fn never_answer_writes_nothing() {
    let setup = Setup::faulty(Action::NeverAnswer);
    let mut client = Client::connect(&setup.sim);
    let token = setup.token(0, MEMORY);
    client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    client.assert_silent(Duration::from_millis(100));
    setup.assert_untouched();
}

#[test]
fn a_cut_or_reset_answer_comes_after_the_write() {
    for action in [Action::Cut { after: None }, Action::Reset { after: None }] {
        let is_cut = matches!(action, Action::Cut { .. });
        let setup = Setup::faulty(action);
        let mut client = Client::connect(&setup.sim);
        let token = setup.token(0, MEMORY);
        client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
        let (bytes, end) = client.rest();
        assert!(bytes.is_empty());
        assert_eq!(end.is_ok(), is_cut);
        setup.assert_written();
    }
}

#[test]
fn a_length_on_a_reply_without_a_body_can_be_a_lie() {
    let setup = Setup::faulty(Action::WrongLength { delta: 5 });
    let mut client = Client::connect(&setup.sim);
    let token = setup.token(0, MEMORY);
    client.send("GET", OBJECT, &[("x-amz-rdma-token", token.as_str())]);
    let head = client.head().unwrap();
    assert_eq!(
        (
            head.header("content-length"),
            head.header("x-amz-rdma-reply")
        ),
        (Some("5"), Some("200"))
    );
    assert!(client.rest().0.is_empty());
}

#[test]
fn a_wrong_range_is_told_as_it_was_written() {
    let setup = Setup::faulty(Action::WrongRange { shift: 10 });
    let reply = setup.get(&[("Range", "bytes=0-99")]);
    assert_eq!(rdma(&reply), (206, Some("206"), Some("100"), 0));
    assert_eq!(reply.header("content-range"), Some("bytes 10-109/3145728"));
    content::verify(KEY, 0, 10, &setup.bytes()[..100]).unwrap();
}

#[test]
fn many_clients_at_once_each_get_their_own_bytes() {
    let setup = Setup::new([]);
    let piece = MEMORY / 16;
    std::thread::scope(|scope| {
        for i in 0..16 {
            let setup = &setup;
            scope.spawn(move || {
                let token = setup.token(i * piece, piece);
                let mut client = Client::connect(&setup.sim);
                for _ in 0..5 {
                    let target = format!("/bench/{piece}-{i}");
                    let reply = client.get(&target, &[("x-amz-rdma-token", token.as_str())]);
                    assert_eq!(reply.status, 200);
                }
            });
        }
    });
    let bytes = setup.bytes();
    for i in 0..16 {
        content::verify(&format!("{piece}-{i}"), 0, 0, &bytes[i * piece..][..piece]).unwrap();
    }
    assert_eq!(setup.sim.counters().rdma_read_ops, 80);
    assert_eq!(setup.sim.counters().rdma_clients, 1);
}
