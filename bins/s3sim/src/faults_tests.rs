use std::collections::BTreeMap;

use super::*;
use proptest::prelude::*;

fn faults(rules: impl IntoIterator<Item = Rule>) -> Faults {
    let faults = Faults::default();
    rules
        .into_iter()
        .for_each(|rule| faults.push(rule).unwrap());
    faults
}

#[test]
fn skip_lets_requests_pass_and_count_spends_the_rule() {
    let faults = faults([Rule::new(Action::NeverAnswer).skip(2).count(3)]);
    let fired: Vec<bool> = (0..8)
        .map(|_| faults.pick(Kind::Http, "k").is_some())
        .collect();
    assert_eq!(fired, [false, false, true, true, true, false, false, false]);
}

#[test]
fn the_first_rule_that_matches_decides_and_a_spent_one_makes_way() {
    let slow = Action::SlowDown { retry_after: None };
    let faults = faults([
        Rule::new(Action::MissingReply)
            .key("a*")
            .only(Kind::Rdma)
            .count(1),
        Rule::new(slow.clone()),
    ]);
    assert_eq!(faults.pick(Kind::Rdma, "b"), Some(slow.clone()));
    assert_eq!(faults.pick(Kind::Http, "a1"), Some(slow.clone()));
    assert_eq!(faults.pick(Kind::Rdma, "a1"), Some(Action::MissingReply));
    assert_eq!(faults.pick(Kind::Rdma, "a1"), Some(slow));
    faults.clear();
    assert_eq!(faults.pick(Kind::Rdma, "a1"), None);
}

#[test]
fn an_rdma_action_matches_only_rdma_and_a_listing_only_where_named() {
    let rdma_only = faults([Rule::new(Action::DeclineWithBody)]);
    for kind in [Kind::Http, Kind::Head, Kind::List] {
        assert_eq!(rdma_only.pick(kind, "k"), None);
    }
    assert!(rdma_only.pick(Kind::Rdma, "k").is_some());
    let any = faults([Rule::new(Action::NeverAnswer)]);
    assert_eq!(any.pick(Kind::List, ""), None);
    let list = faults([Rule::new(Action::NeverAnswer).only(Kind::List)]);
    assert!(list.pick(Kind::List, "").is_some());
}

#[test]
fn dice_are_fair_enough_and_repeat_with_their_seed() {
    let roll = |seed| {
        let faults = faults([Rule::new(Action::NeverAnswer).probability(0.25, seed)]);
        (0..1000)
            .map(|_| faults.pick(Kind::Http, "k").is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(roll(1), roll(1));
    assert_ne!(roll(1), roll(2));
    let share = roll(1).iter().filter(|&&fired| fired).count();
    assert!((200..300).contains(&share), "{share}");
}

#[test]
fn a_script_is_read_with_every_form_of_action() {
    let rules = parse(
        r#"
        [[rule]]
        action = "missing-reply"
        [[rule]]
        key = "train/*"
        only = "http"
        skip = 1
        count = 2
        probability = 0.5
        seed = 7
        action = { stall = { after = 100, ms = 50 } }
        [[rule]]
        action = { status = { code = 403, s3-code = "AccessDenied", headers = { x-a = "b" } } }
        [[rule]]
        action = { slow-down = {} }
        [[rule]]
        action = { wrong-range = {} }
        "#,
    )
    .unwrap();
    let stall = Rule::new(Action::Stall {
        after: Some(100),
        ms: 50,
    });
    let stall = stall
        .key("train/*")
        .only(Kind::Http)
        .skip(1)
        .count(2)
        .probability(0.5, 7);
    assert_eq!(rules[1], stall);
    assert!(
        matches!(&rules[2].action, Action::Status { code: 403, headers, .. } if headers["x-a"] == "b")
    );
    assert_eq!(rules[4].action, Action::WrongRange { shift: 1 });
    assert_eq!(rules.len(), 5);
}

#[test]
fn unknown_or_impossible_things_are_refused() {
    for text in [
        "[[rule]]\naction = \"no-such-thing\"",
        "[[rule]]\naction = \"swap\"\ncolour = 1",
        "rules = []",
        "[[rule]]\naction = { cut = { afte = 1 } }",
        "[[rule]]\nonly = \"put\"\naction = \"swap\"",
        "[[rule]]",
        "not toml",
    ] {
        assert!(matches!(parse(text), Err(FaultError::Parse(_))), "{text}");
    }
    let headers = BTreeMap::from([("a b".to_owned(), String::new())]);
    for rule in [
        Rule::new(Action::Swap).probability(1.5, 0),
        Rule::new(Action::Swap).probability(f64::NAN, 0),
        Rule::new(Action::WrongBytes {
            value: None,
            delta: None,
        }),
        Rule::new(Action::WrongBytes {
            value: Some(1),
            delta: Some(1),
        }),
        Rule::new(Action::Status {
            code: 100,
            s3_code: None,
            headers: BTreeMap::new(),
        }),
        Rule::new(Action::Status {
            code: 200,
            s3_code: None,
            headers,
        }),
        Rule::new(Action::Trickle { bytes: 0, ms: 1 }),
        Rule::new(Action::AnswerLate { ms: u64::MAX }),
        Rule::new(Action::MissingReply).only(Kind::Http),
    ] {
        let error = Faults::default().push(rule.clone());
        assert!(
            matches!(error, Err(FaultError::Impossible { .. })),
            "{rule:?}"
        );
    }
}

#[test]
fn a_rule_survives_being_written_and_read() {
    #[derive(Serialize)]
    struct Script {
        rule: Vec<Rule>,
    }
    let rule = vec![
        Rule::new(Action::WrongBytes {
            value: None,
            delta: Some(-1),
        })
        .only(Kind::Rdma),
        Rule::new(Action::Cut { after: None }).count(1),
    ];
    let text = toml::to_string(&Script { rule: rule.clone() }).unwrap();
    assert_eq!(parse(&text).unwrap(), rule);
}

#[test]
fn patterns_match_whole_keys() {
    for (pattern, text, matches) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("a*", "abc", true),
        ("a*", "ba", false),
        ("*c", "abcbc", true),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("*/8MiB-*1", "train/8MiB-0001", true),
        ("a*b*c", "a--b--b-c-", false),
        ("é?", "éé", true),
    ] {
        assert_eq!(glob(pattern, text), matches, "{pattern} on {text}");
    }
}

proptest! {
    #[test]
    fn a_prefix_pattern_is_starts_with(prefix in "[a-c]{0,4}", text in "[a-c]{0,8}") {
        prop_assert_eq!(glob(&format!("{prefix}*"), &text), text.starts_with(&prefix));
        prop_assert_eq!(glob(&format!("*{prefix}*"), &text), text.contains(&prefix));
    }

    #[test]
    fn arbitrary_scripts_never_panic(text in ".{0,200}") {
        let _ = parse(&text);
    }
}
