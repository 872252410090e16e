//! What is measured, in which order. Pure.

use s3engine::Policy;

use super::args::ScaleArgs;
use super::run::{Mode, Register};

/// One case: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) mode: Mode,
    pub(crate) policy: Policy,
    pub(crate) size: u64,
    pub(crate) processes: usize,
    pub(crate) register: Register,
}

/// All cases, of `policy` where the flags name none: the processes of one mode, policy and size follow one another, fewest first.
pub(crate) fn cases(args: &ScaleArgs, policy: Policy) -> Vec<Case> {
    let (mut procs, mut sizes) = (args.procs.clone(), args.size.clone());
    procs.sort_unstable();
    procs.dedup();
    sizes.sort_unstable();
    sizes.dedup();
    let policies = match &args.policy[..] {
        [] => vec![policy],
        chosen => in_order(chosen),
    };
    let mut cases = Vec::new();
    for mode in in_order(&args.mode) {
        for &policy in &policies {
            for size in &sizes {
                cases.extend(procs.iter().map(|&processes| Case {
                    mode,
                    policy,
                    size: size.0,
                    processes,
                    register: match mode {
                        Mode::PerProcess => args.register,
                        Mode::Shared => Register::Once,
                    },
                }));
            }
        }
    }
    cases
}

/// As given, each once.
fn in_order<T: Copy + PartialEq>(all: &[T]) -> Vec<T> {
    let mut once: Vec<T> = Vec::new();
    for &one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ScaleArgs,
    }

    fn of(flags: &[&str]) -> Vec<Case> {
        let line = [&["scale"], flags].concat();
        cases(&Line::try_parse_from(line).unwrap().args, Policy::Http)
    }

    #[test]
    fn the_policy_of_the_settings_counts_where_the_flags_name_none() {
        let of = |flags: &[&str]| of(flags).iter().map(|case| case.policy).collect::<Vec<_>>();
        let few = ["--procs", "1", "--size", "1MiB", "--mode", "shared"];
        assert_eq!(of(&few), [Policy::Http]);
        let named = [&few[..], &["--policy", "require-rdma,http,http"]].concat();
        assert_eq!(of(&named), [Policy::RequireRdma, Policy::Http]);
    }

    #[test]
    fn processes_ascend_within_each_mode_and_size_and_nothing_is_measured_twice() {
        let cases = of(&[
            "--procs",
            "4,1,4",
            "--size",
            "8MiB,1MiB",
            "--register",
            "per-op",
        ]);
        let shown: Vec<_> = cases
            .iter()
            .map(|case| (case.mode, case.size >> 20, case.processes))
            .collect();
        let of_mode = |mode| [(mode, 1, 1), (mode, 1, 4), (mode, 8, 1), (mode, 8, 4)];
        assert_eq!(
            shown,
            [of_mode(Mode::PerProcess), of_mode(Mode::Shared)].concat()
        );
        assert!(
            cases.iter().all(|case| {
                (case.register == Register::PerOp) == (case.mode == Mode::PerProcess)
            })
        );
    }
}
