//! Every metric that the service gives, and what it means.

use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    describe_counter, describe_gauge, describe_histogram,
};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use metrics_util::MetricKindMask;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Bounds of the classes of times, in seconds: from a hit in a near cache to a timeout.
const SECONDS: [f64; 16] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0, 60.0,
];

/// Names of what is counted for each client begin so.
const OF_CLIENTS: &str = "s3engine_client_";

/// What is counted for a client and did not change for so long is not given any more: clients come and go, and their
/// series would pile up. Long enough for a server that asks every few minutes to see the last value.
const FORGOTTEN: Duration = Duration::from_secs(600);

#[rustfmt::skip]
const FIGURES: [(Kind, &str, &str); 43] = [
    (Kind::Gauge, "s3engine_build_info", "1, with the version as its label"),
    (Kind::Counter, "s3engine_gets_total", "GETs that have ended, by path and reason"),
    (Kind::Counter, "s3engine_bytes_total", "bytes of objects that arrived, by path and reason"),
    (Kind::Counter, "s3engine_client_gets_total", "GETs that have ended, by client, path and reason"),
    (Kind::Counter, "s3engine_client_bytes_total", "bytes of objects that arrived, by client and path"),
    (Kind::Histogram, "s3engine_get_seconds", "from submission to completion, by path"),
    (Kind::Histogram, "s3engine_first_byte_seconds", "from submission to the first byte of an answer, by path"),
    (Kind::Counter, "s3engine_retries_total", "requests that were tried again, by the reason of the failure"),
    (Kind::Counter, "s3engine_redirects_total", "requests that an answer sent to another region or server"),
    (Kind::Counter, "s3engine_signed_anew_total", "requests that were signed again after a refusal, by cause: `clock` or `credentials`"),
    (Kind::Counter, "s3engine_clock_corrections_total", "times that the clock of signatures was set after a server's"),
    (Kind::Counter, "s3engine_credential_fetches_total", "times that credentials were asked for, by result"),
    (Kind::Gauge, "s3engine_in_flight_gets", "GETs that have not ended"),
    (Kind::Gauge, "s3engine_in_flight_requests", "requests that have a permit: they are under way"),
    (Kind::Gauge, "s3engine_in_flight_bytes", "bytes that those ask for"),
    (Kind::Gauge, "s3engine_waiting_requests", "requests that wait for their turn, since the limits are reached"),
    (Kind::Gauge, "s3engine_window_requests", "requests at once that an endpoint is given, as it was learned, by endpoint"),
    (Kind::Counter, "s3engine_window_shrinks_total", "times that these became fewer, by endpoint and cause: `slow-down`, `timeout`, `lost` or `latency`"),
    (Kind::Gauge, "s3engine_service_sessions", "clients that are attached"),
    (Kind::Gauge, "s3engine_pool_mapped_bytes", "bytes of all slabs"),
    (Kind::Gauge, "s3engine_pool_cuda_mapped_bytes", "bytes of all slabs on a CUDA device, by device"),
    (Kind::Gauge, "s3engine_pool_leased_bytes", "bytes of leased slots"),
    (Kind::Gauge, "s3engine_pool_quarantined_bytes", "bytes of slots that a remote may still write to"),
    (Kind::Gauge, "s3engine_pool_clients", "clients that have memory of the pool"),
    (Kind::Counter, "s3engine_slab_exports_total", "slabs whose memory was handed to a client"),
    (Kind::Counter, "s3engine_quarantined_slots_total", "slots that went to quarantine"),
    (Kind::Counter, "s3engine_slabs_given_up_total", "slabs given up, since a revocation was not confirmed"),
    (Kind::Counter, "s3engine_registrations_total", "registrations of memory, by fabric"),
    (Kind::Counter, "s3engine_registration_failures_total", "registrations that failed, by fabric and cause"),
    (Kind::Gauge, "s3engine_rdma_share_missing_bytes", "bytes counted as RDMA here that the servers have not counted"),
    (Kind::Counter, "s3engine_rdma_share_unheard_total", "looks at the servers' counters that failed"),
    (Kind::Counter, "s3engine_rail_bytes_total", "bytes that servers wrote by RDMA, by rail"),
    (Kind::Counter, "s3engine_rail_failures_total", "transfers that failed on their rail, by rail"),
    (Kind::Counter, "s3engine_rail_downs_total", "times that a rail was not used for a while, by rail"),
    (Kind::Counter, "s3engine_rail_takeovers_total", "segments registered by another rail since theirs is down, by rail"),
    (Kind::Counter, "s3engine_revocations_total", "revocations of registrations, by fabric and whether they were confirmed"),
    (Kind::Counter, "s3engine_cuda_contexts_total", "CUDA contexts that were made: one a device"),
    (Kind::Counter, "s3engine_cuda_adopted_total", "buffers of the caller's own CUDA memory, by result: `known` or `new`"),
    (Kind::Gauge, "s3engine_cuda_staging_bytes", "bytes of pinned memory that HTTP bodies are staged in, by device"),
    (Kind::Counter, "s3engine_cuda_staged_bytes_total", "bytes that went through staging, by device"),
    (Kind::Counter, "s3engine_cuda_copies_total", "copies from staging, by device"),
    (Kind::Counter, "s3engine_cuda_copy_errors_total", "copies from staging that failed, by device"),
    (Kind::Histogram, "s3engine_cuda_staging_wait_seconds", "waits of GETs for staging memory, by device"),
];

/// Gives the figures as text.
#[derive(Clone)]
pub(crate) struct Figures {
    host: PrometheusHandle,
    clients: PrometheusHandle,
}

impl Figures {
    pub(crate) fn render(&self) -> String {
        self.host.render() + &self.clients.render()
    }

    /// Tidies up where nobody asks for the figures.
    pub(crate) fn run_upkeep(&self) {
        self.host.run_upkeep();
        // Nothing else forgets those of clients that have gone.
        drop(self.clients.render());
    }
}

/// Counts what is of the whole host, which stays, and what is of each client, which is forgotten.
struct Recorders {
    host: PrometheusRecorder,
    clients: PrometheusRecorder,
}

impl Recorders {
    fn new(forgotten: Duration) -> Result<(Self, Figures), BuildError> {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let host = PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS)?;
        let clients =
            PrometheusBuilder::new().idle_timeout(MetricKindMask::COUNTER, Some(forgotten));
        let (host, clients) = (host.build_recorder(), clients.build_recorder());
        let figures = Figures {
            host: host.handle(),
            clients: clients.handle(),
        };
        Ok((Self { host, clients }, figures))
    }

    fn of(&self, name: &str) -> &PrometheusRecorder {
        match name.starts_with(OF_CLIENTS) {
            true => &self.clients,
            false => &self.host,
        }
    }
}

impl Recorder for Recorders {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.of(name.as_str())
            .describe_counter(name.clone(), unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.of(name.as_str())
            .describe_gauge(name.clone(), unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.of(name.as_str())
            .describe_histogram(name.clone(), unit, help);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.of(key.name()).register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.of(key.name()).register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.of(key.name()).register_histogram(key, metadata)
    }
}

/// Counts from now on. What this returns gives the figures.
pub(crate) fn start() -> Result<Figures, String> {
    let built = Recorders::new(FORGOTTEN);
    let (recorders, figures) = built.map_err(|error| error.to_string())?;
    metrics::set_global_recorder(recorders).map_err(|error| error.to_string())?;
    for (kind, name, help) in FIGURES {
        match kind {
            Kind::Counter => describe_counter!(name, help),
            Kind::Gauge => describe_gauge!(name, help),
            Kind::Histogram => describe_histogram!(name, Unit::Seconds, help),
        }
    }
    metrics::gauge!("s3engine_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;

    /// The names that the sources below a folder record, with their kinds.
    fn recorded(folder: &Path, found: &mut BTreeMap<String, Kind>) {
        let kinds = [
            ("metrics::counter!(\"", Kind::Counter),
            ("metrics::gauge!(\"", Kind::Gauge),
            ("metrics::histogram!(\"", Kind::Histogram),
        ];
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                recorded(&path, found);
            } else if path.extension().is_some_and(|of| of == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                for (call, kind) in kinds {
                    for rest in text.split(call).skip(1) {
                        let name = rest.split('"').next().unwrap();
                        if name.starts_with("s3engine_") {
                            found.insert(name.to_owned(), kind);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_of_a_client_is_forgotten_when_it_rests_and_what_is_of_the_host_stays() {
        let (recorders, figures) = Recorders::new(Duration::from_millis(1)).unwrap();
        metrics::with_local_recorder(&recorders, || {
            metrics::counter!("s3engine_client_gets_total", "client" => "a").increment(2);
            metrics::counter!("s3engine_gets_total").increment(2);
        });
        let text = figures.render();
        assert!(
            text.contains("s3engine_client_gets_total{client=\"a\"} 2"),
            "{text}"
        );
        std::thread::sleep(Duration::from_millis(5));
        figures.run_upkeep();
        let text = figures.render();
        assert!(!text.contains("client"), "{text}");
        assert!(text.contains("s3engine_gets_total 2"), "{text}");
    }

    #[test]
    fn every_figure_is_described_and_documented_and_none_that_there_is_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = BTreeMap::new();
        for folder in [
            "pool/src",
            "s3/src",
            "engine/src",
            "bins/s3engine/src/serve",
        ] {
            recorded(&root.join(folder), &mut found);
        }
        let described: BTreeMap<_, _> = FIGURES
            .iter()
            .map(|(kind, name, _)| ((*name).to_owned(), *kind))
            .collect();
        assert_eq!(found, described);
        let page = fs::read_to_string(root.join("docs/service.md")).unwrap();
        for (kind, name, help) in FIGURES {
            let row = format!(
                "| `{name}` | {} | {help}",
                format!("{kind:?}").to_lowercase()
            );
            assert!(page.contains(&row), "{row}");
        }
    }

    /// The names that stand in the queries of a dashboard.
    fn queried(value: &serde_json::Value, found: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str().filter(|_| name == "expr") {
                        Some(query) => found.extend(
                            query
                                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                                .filter(|word| word.starts_with("s3engine_"))
                                .map(str::to_owned),
                        ),
                        None => queried(value, found),
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|one| queried(one, found)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_shows_every_figure_and_none_that_there_is_not() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/grafana.json");
        let dashboard = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let mut found = BTreeSet::new();
        queried(&dashboard, &mut found);
        let shown = FIGURES.map(|(kind, name, _)| match kind {
            Kind::Histogram => format!("{name}_bucket"),
            _ => name.to_owned(),
        });
        assert_eq!(found, BTreeSet::from(shown));
    }
}
