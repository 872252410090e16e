//! Processes that others started.

use std::fs;

/// Processes that a process started, and whom they started.
pub fn descendants(id: u32) -> Vec<i32> {
    let mut all = Vec::new();
    let mut next = vec![id as i32];
    while let Some(id) = next.pop() {
        let tasks = fs::read_dir(format!("/proc/{id}/task"))
            .into_iter()
            .flatten()
            .flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            next.extend(
                children
                    .split_whitespace()
                    .map(|id| id.parse::<i32>().unwrap()),
            );
        }
        all.push(id);
    }
    all.retain(|&child| child != id as i32);
    all
}

/// Whether it runs: one that nobody has waited for does not.
pub fn runs(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.starts_with(['Z', 'X']));
    state == Some(false)
}
