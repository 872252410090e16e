//! What went wrong for people with other clients, each as a test of its whole kind: every verb, by HTTP and by RDMA, in
//! this process and through a host service. `docs/field-reports.md` says what each report is about.

mod bodies;
mod checksums;
mod connections;
mod objects;
mod places;
mod resources;
mod signed;
mod tls;
mod told;
mod versions;

use std::fs;
use std::path::Path;

use s3engine::{EngineBuilder, Policy};
use s3engine_tests::{Hosted, Rig, Thing, Verb};
use s3sim::{Action, Kind, Rule, SimOptions};

/// Over a server with listed objects, each of which takes four requests.
fn rig(rules: Vec<Rule>) -> Rig {
    rig_with(rules, |builder| builder)
}

/// With other settings too.
fn rig_with(rules: Vec<Rule>, shape: impl Fn(EngineBuilder) -> EngineBuilder) -> Rig {
    let options = SimOptions {
        faults: rules,
        listed: Thing::listed(),
        ..SimOptions::default()
    };
    rig_of(options, shape)
}

fn rig_of(options: SimOptions, shape: impl Fn(EngineBuilder) -> EngineBuilder) -> Rig {
    Rig::of(options, |builder, _| {
        shape(
            builder
                .part_sizes(64 << 10, 64 << 10)
                .rdma_threshold(8 << 10),
        )
    })
}

/// The fault, in every request.
fn always(action: &Action) -> Vec<Rule> {
    vec![
        Rule::new(action.clone()),
        Rule::new(action.clone()).only(Kind::List),
    ]
}

/// The fault, in every answer with a body that is not an RDMA answer.
fn in_bodies(action: &Action) -> Vec<Rule> {
    let of = |kind| Rule::new(action.clone()).only(kind);
    vec![of(Kind::Http), of(Kind::List)]
}

/// Asks everything, each of an object of its own; hands every answer to `check`.
fn ask_all(
    host: &Hosted<'_>,
    verbs: &[Verb],
    policies: &[Policy],
    check: impl Fn(Result<(), s3engine::Error>, &str),
) {
    let mut nth = 0;
    for &verb in verbs {
        for &policy in policies {
            let answer = verb.ask(host.engine, policy, &Thing::nth(nth % 20));
            check(answer, &format!("{verb:?} under {policy}, {}", host.name));
            nth += 1;
        }
    }
}

/// All of them must succeed, though each meets these faults anew.
fn assert_overcome(host: &Hosted<'_>, verbs: &[Verb], policies: &[Policy], rules: &[Rule]) {
    for &verb in verbs {
        let faults = host.rig.sim.faults();
        faults.clear();
        for rule in rules {
            faults.push(rule.clone()).unwrap();
        }
        assert_all(host, &[verb], policies);
    }
    assert!(
        host.rig.sim.counters().faults > 0,
        "nothing was to overcome"
    );
}

/// Each rule, for so many requests.
fn first(n: u64, rules: Vec<Rule>) -> Vec<Rule> {
    rules.into_iter().map(|rule| rule.count(n)).collect()
}

/// All of them must succeed.
fn assert_all(host: &Hosted<'_>, verbs: &[Verb], policies: &[Policy]) {
    ask_all(host, verbs, policies, |answer, what| {
        answer.unwrap_or_else(|error| panic!("{what}: {error}"));
    });
}

/// All of them must fail, with an error of one line that names the object or the bucket.
fn assert_none(host: &Hosted<'_>, verbs: &[Verb], policies: &[Policy]) {
    ask_all(host, verbs, policies, |answer, what| {
        let line = answer.expect_err(what).to_string();
        assert!(
            !line.contains('\n') && line.contains("bench"),
            "{what}: {line}"
        );
    });
}

/// Everything that `docs/field-reports.md` names in a code span with a `_` is a test here or there.
#[test]
fn every_test_that_the_table_of_reports_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = String::new();
    for part in ["pool", "s3", "engine", "bins", "tests", "fuzz"] {
        read_sources(&root.join(part), &mut sources);
    }
    let table = fs::read_to_string(root.join("docs/field-reports.md")).unwrap();
    let rows: Vec<_> = table
        .lines()
        .filter(|line| line.starts_with("| R"))
        .collect();
    assert!(rows.len() > 50, "only {} reports", rows.len());
    let mut ids: Vec<_> = rows.iter().map(|row| row.split('|').nth(1)).collect();
    ids.dedup();
    assert_eq!(ids.len(), rows.len(), "a report twice");
    for row in rows {
        for name in row
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| name.contains('_'))
        {
            let test = format!("fn {name}(");
            assert!(sources.contains(&test), "{name} is no test: {row}");
        }
    }
}

fn read_sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            read_sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}
