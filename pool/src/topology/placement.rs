//! Threads on the processors of a node.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{NumaNode, Topology};

impl Topology {
    /// The nodes on whose processors the calling thread may run: not all of them, where a container or an affinity
    /// leaves only some.
    pub fn usable_nodes(&self) -> Vec<NumaNode> {
        let usable = |node: &&NumaNode| node.usable_cpus().is_some();
        self.nodes.iter().filter(usable).cloned().collect()
    }
}

impl NumaNode {
    /// Keeps the calling thread, and those that it starts, on the node's processors: on those that it may use now.
    /// Returns whether there are any; if not, it stays where it is.
    pub fn place_this_thread(&self) -> bool {
        let placed = |cpus: &CpuSet| sched_setaffinity(None, cpus).is_ok();
        self.usable_cpus().as_ref().is_some_and(placed)
    }

    fn usable_cpus(&self) -> Option<CpuSet> {
        // Refused where there are more processors than a set holds: threads are not placed there.
        let allowed = sched_getaffinity(None).ok()?;
        let mut usable = CpuSet::new();
        let of_set = self.cpus.iter().map(|&cpu| cpu as usize);
        for cpu in of_set.filter(|&cpu| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu)) {
            usable.set(cpu);
        }
        (usable.count() > 0).then_some(usable)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn node(id: u32, cpus: &[u32]) -> NumaNode {
        NumaNode {
            id,
            cpus: cpus.to_vec(),
            memory: None,
        }
    }

    /// Processors that this thread may run on.
    fn allowed() -> Vec<u32> {
        let set = sched_getaffinity(None).unwrap();
        let all = 0..CpuSet::MAX_CPU;
        all.filter(|&cpu| set.is_set(cpu))
            .map(|cpu| cpu as u32)
            .collect()
    }

    #[test]
    fn a_thread_is_kept_on_those_processors_of_its_node_that_it_may_use() {
        let before = allowed();
        let own = *before.last().unwrap();
        let none = (0..1024).find(|cpu| !before.contains(cpu)).unwrap();
        let placed = thread::spawn(move || {
            assert!(node(1, &[own, none, 8000]).place_this_thread());
            (allowed(), thread::spawn(allowed).join().unwrap())
        });
        assert_eq!(placed.join().unwrap(), (vec![own], vec![own]));
        assert_eq!(allowed(), before);
    }

    #[test]
    fn a_node_that_has_none_of_them_changes_nothing() {
        let before = allowed();
        let none = (0..1024).find(|cpu| !before.contains(cpu)).unwrap();
        let hidden = [node(0, &[none]), node(1, &[]), node(2, &[8000])];
        for node in &hidden {
            assert!(!node.place_this_thread(), "{node:?}");
        }
        assert_eq!(allowed(), before);
        let own = node(3, &before);
        let topology = Topology {
            nodes: hidden.into_iter().chain([own.clone()]).collect(),
            ..Topology::default()
        };
        assert_eq!(topology.usable_nodes(), [own]);
    }
}
