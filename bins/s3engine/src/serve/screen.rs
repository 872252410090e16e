//! What is told when the service has started: one screen for people, one line of log for programs.

use std::net::SocketAddr;

use s3engine::cuda::Uuid;
use s3engine::service::{Rule, Who};
use s3engine::topology::Topology;
use s3engine::{Engine, Memory};

use crate::gpus::{self, Gpu};
use crate::object_url::on_one_line;
use crate::serve::plan::Plan;
use crate::size::human;

/// The screen.
pub(crate) fn text(plan: &Plan, engine: &Engine, metrics: Option<SocketAddr>) -> String {
    let mut text = format!(
        "s3engine {} serves at {}\n",
        env!("CARGO_PKG_VERSION"),
        on_one_line(&plan.socket.display().to_string())
    );
    // Names and paths may hold anything.
    let mut line =
        |name: &str, what: String| text += &format!("  {name:9} {}\n", on_one_line(&what));
    line("clients", clients(plan));
    for (nth, served) in plan.endpoints.iter().enumerate() {
        let default = match nth {
            0 if plan.endpoints.len() > 1 => ", the default",
            _ => "",
        };
        let signed = match &served.credentials {
            nobody if nobody.is_anonymous() => "anonymous",
            fetched if fetched.is_fetched() => "signed with fetched keys",
            _ => "signed",
        };
        let (name, endpoint) = (&served.name, &served.endpoint);
        line("endpoint", format!("{name}{default}: {endpoint}, {signed}"));
    }
    line("pool", pool(plan, engine));
    for gpu in gpus(engine) {
        line("gpu", gpu);
    }
    line("fabric", fabric(engine));
    line("driver", driver(engine));
    let (requests, bytes) = (plan.limits.requests, human(plan.limits.bytes as f64));
    line(
        "in flight",
        format!("at most {requests} requests and {bytes} of all clients together"),
    );
    line("caps", caps(plan));
    line("metrics", told(metrics));
    text
}

fn told(metrics: Option<SocketAddr>) -> String {
    match metrics {
        Some(address) => format!("http://{address}/metrics, /healthz, /readyz"),
        None => "none: --metrics ADDR serves them".to_owned(),
    }
}

fn clients(plan: &Plan) -> String {
    let own = rustix::process::geteuid().as_raw();
    let mut text = format!("uid {own}, this service's own, reads everything");
    for who in &plan.access.allow {
        let of = |rule: &&Rule| rule.who == *who;
        let rules = plan.access.rules.iter().filter(of).count();
        let (kind, number) = match who {
            Who::Uid(number) => ("uid", number),
            Who::Gid(number) => ("gid", number),
        };
        text += &format!("; {kind} {number} by {rules} rules");
    }
    text
}

fn pool(plan: &Plan, engine: &Engine) -> String {
    let most = human(engine.pool().stats().max_bytes as f64);
    let slab = human(plan.caps.slab_bytes as f64);
    format!("at most {most} of host memory, in slabs of {slab} that are one client's each")
}

/// Each that clients can have memory of, or why there is none.
fn gpus(engine: &Engine) -> Vec<String> {
    let none = |why: String| vec![format!("none: {why}")];
    let told = |gpu: &Gpu| {
        let uuid = gpu.uuid.parse::<Uuid>().ok();
        let bound = uuid.and_then(|uuid| engine.pool().max_bytes(Memory::Cuda(uuid)).ok());
        let most = human(bound.unwrap_or(0) as f64);
        let all = human(gpu.memory_bytes as f64);
        format!("{}: {gpu}, at most {most} of {all}", gpu.index)
    };
    match gpus::seen(&Topology::read()) {
        Ok(gpus) if gpus.is_empty() => none("the CUDA driver shows no device".to_owned()),
        Ok(gpus) => gpus.iter().map(told).collect(),
        Err(error) => none(error.to_string()),
    }
}

fn fabric(engine: &Engine) -> String {
    match engine.fabric() {
        Ok(name) => name.to_owned(),
        Err(why) => format!("none: {why}"),
    }
}

fn driver(engine: &Engine) -> String {
    engine.driver().map(ToString::to_string).unwrap_or_default()
}

fn caps(plan: &Plan) -> String {
    let caps = &plan.caps;
    let mut text = format!(
        "{} clients, {} of one user; of one client {} queues of {} entries",
        caps.sessions, caps.sessions_per_uid, caps.queues, caps.entries
    );
    if let Some(bytes) = caps.bytes {
        text += &format!(", {} leased", human(bytes as f64));
    }
    if let Some(requests) = caps.requests {
        text += &format!(", {requests} requests under way");
    }
    let bytes = |bytes: u64| human(bytes as f64);
    let of_user = [
        caps.bytes_per_uid.map(|of| format!("{} leased", bytes(of))),
        caps.queue_bytes_per_uid
            .map(|of| format!("{} of queues", bytes(of))),
        caps.requests_per_uid
            .map(|of| format!("{of} requests under way")),
        caps.in_flight_bytes_per_uid
            .map(|of| format!("{} under way", bytes(of))),
    ];
    let of_user: Vec<_> = of_user.into_iter().flatten().collect();
    if !of_user.is_empty() {
        text += &format!("; of one user {}", of_user.join(", "));
    }
    text
}

/// The same as one line of the log.
pub(crate) fn log(plan: &Plan, engine: &Engine, metrics: Option<SocketAddr>) {
    let names: Vec<_> = plan
        .endpoints
        .iter()
        .map(|served| format!("{}={}", served.name, served.endpoint))
        .collect();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        socket = %plan.socket.display(),
        clients = clients(plan),
        endpoints = names.join(" "),
        pool = pool(plan, engine),
        gpus = gpus(engine).join("; "),
        fabric = fabric(engine),
        driver = driver(engine),
        caps = caps(plan),
        metrics = told(metrics),
        "serving"
    );
}
