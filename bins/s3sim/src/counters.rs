//! What the server counts, and how it tells it to Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The live counters.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub requests: AtomicU64,
    pub rdma_read_bytes: AtomicU64,
    pub rdma_read_ops: AtomicU64,
    pub late_writes_landed: AtomicU64,
    pub late_writes_refused: AtomicU64,
    pub faults: AtomicU64,
    pub connections: AtomicU64,
    pub tls_full: AtomicU64,
    pub tls_resumed: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// HTTP requests with a readable head.
    pub requests: u64,
    /// Bytes written by RDMA in answer to GETs.
    pub rdma_read_bytes: u64,
    /// GETs answered by RDMA.
    pub rdma_read_ops: u64,
    /// Distinct RDMA clients that this server ever connected to.
    pub rdma_clients: u64,
    /// Writes of the fault `write-late` that reached the client's memory.
    pub late_writes_landed: u64,
    /// Writes of the fault `write-late` that a revocation stopped.
    pub late_writes_refused: u64,
    /// Requests that a fault was applied to.
    pub faults: u64,
    /// Connections that were accepted.
    pub connections: u64,
    /// TLS sessions that began anew.
    pub tls_full: u64,
    /// TLS sessions that went on with what an earlier one had agreed on.
    pub tls_resumed: u64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Tally {
    /// All but the RDMA clients, which the fabric counts.
    pub fn read(&self) -> Counters {
        Counters {
            requests: self.requests.load(Relaxed),
            rdma_read_bytes: self.rdma_read_bytes.load(Relaxed),
            rdma_read_ops: self.rdma_read_ops.load(Relaxed),
            rdma_clients: 0,
            late_writes_landed: self.late_writes_landed.load(Relaxed),
            late_writes_refused: self.late_writes_refused.load(Relaxed),
            faults: self.faults.load(Relaxed),
            connections: self.connections.load(Relaxed),
            tls_full: self.tls_full.load(Relaxed),
            tls_resumed: self.tls_resumed.load(Relaxed),
        }
    }
}

impl Counters {
    /// Prometheus text. The write counters are there because real servers have them; this one
    /// takes no PUT.
    pub fn to_prometheus(&self, server: &str) -> String {
        let server = server.replace('\\', "\\\\").replace('"', "\\\"");
        let mut text = String::new();
        let mut line = |name: &str, kind: &str, help: &str, value: u64| {
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{server=\"{server}\"}} {value}\n"
            );
        };
        let c = "counter";
        line(
            "minio_api_rdma_read_bytes_total",
            c,
            "Bytes of GETs moved by RDMA",
            self.rdma_read_bytes,
        );
        line(
            "minio_api_rdma_read_ops_total",
            c,
            "GETs moved by RDMA",
            self.rdma_read_ops,
        );
        line(
            "minio_api_rdma_write_bytes_total",
            c,
            "Bytes of PUTs moved by RDMA",
            0,
        );
        line("minio_api_rdma_write_ops_total", c, "PUTs moved by RDMA", 0);
        line(
            "s3sim_rdma_clients_seen",
            "gauge",
            "Distinct RDMA clients ever seen",
            self.rdma_clients,
        );
        line(
            "s3sim_late_writes_landed_total",
            c,
            "Late writes that landed",
            self.late_writes_landed,
        );
        line(
            "s3sim_late_writes_refused_total",
            c,
            "Late writes refused",
            self.late_writes_refused,
        );
        line("s3sim_requests_total", c, "HTTP requests", self.requests);
        line(
            "s3sim_faults_total",
            c,
            "Requests that a fault was applied to",
            self.faults,
        );
        line(
            "s3sim_connections_total",
            c,
            "Connections accepted",
            self.connections,
        );
        let help = "TLS sessions that began anew";
        line("s3sim_tls_full_total", c, help, self.tls_full);
        let help = "TLS sessions that were resumed";
        line("s3sim_tls_resumed_total", c, help, self.tls_resumed);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_told_under_its_name() {
        let tally = Tally::default();
        add(&tally.rdma_read_bytes, 7);
        add(&tally.requests, 2);
        let text = tally.read().to_prometheus("127.0.0.1:9");
        assert!(text.contains("\nminio_api_rdma_read_bytes_total{server=\"127.0.0.1:9\"} 7\n"));
        assert!(text.contains("\ns3sim_requests_total{server=\"127.0.0.1:9\"} 2\n"));
        assert_eq!(
            text.lines().filter(|line| !line.starts_with('#')).count(),
            12
        );
    }
}
