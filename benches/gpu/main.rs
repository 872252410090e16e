//! GETs into CUDA memory, beside the bare copies that bound them. Needs a GPU; says so where there is none.
//!
//! `cargo bench -p s3engine-benches --bench gpu [-- [check|rates|scale [require-rdma|http]|attach|faults] ROUNDS SECONDS]`
//! `cargo bench -p s3engine-benches --bench gpu -- reader URL BUCKET KEY BYTES THREADS host|cuda:N`
//!
//! Built on another machine, the executable runs by itself: it starts the simulator, the service and workers as
//! processes of its own. Bytes are checked by copying them back from the device.

mod attach;
mod check;
#[path = "../service/compare.rs"]
mod compare;
mod faults;
#[path = "../service/place.rs"]
mod place;
#[path = "../service/process.rs"]
mod process;
mod rates;
mod reader;
#[path = "../service/roles.rs"]
mod roles;

use std::time::Duration;

use s3engine::cuda::Gpu;

fn main() {
    match std::env::var("S3ENGINE_BENCH_ROLE").as_deref() {
        Ok("attach") => return attach::client(),
        Ok(role) => return roles::run(role),
        Err(_) => {}
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|part| part == "reader") {
        return reader::run(&args[1..]);
    }
    let parts = ["check", "rates", "scale", "attach", "faults"];
    let named = |part: &&str| args.iter().any(|arg| arg == part);
    let wanted = |part| !parts.iter().any(named) || named(&part);
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let rounds = numbers.next().unwrap_or(7) as usize;
    let times = (rounds, Duration::from_secs(numbers.next().unwrap_or(1)));
    let gpus = match Gpu::all() {
        Ok([]) => return println!("skipped: no CUDA device"),
        Ok(gpus) => gpus,
        Err(error) => return println!("skipped: no CUDA device ({error})"),
    };
    let version = Gpu::driver_version().unwrap_or(0);
    for gpu in gpus {
        println!(
            "{gpu} {}, {} GiB, PCI {}, driver for CUDA {}.{}, remote writes ordered for {:?}",
            gpu.name(),
            gpu.memory() >> 30,
            gpu.pci(),
            version / 1000,
            version % 1000 / 10,
            gpu.ordering(),
        );
    }
    if wanted("check") {
        check::run(gpus);
    }
    if wanted("rates") {
        rates::run(&gpus[0], times);
    }
    if wanted("scale") {
        let policies = ["require-rdma", "http"];
        let asked = |policy: &&str| args.iter().any(|arg| arg == policy);
        let any = policies.iter().any(asked);
        let chosen = policies.iter().filter(|policy| !any || asked(policy));
        chosen.for_each(|policy| rates::scale(gpus, policy, times));
    }
    if wanted("attach") {
        attach::run(&gpus[0]);
    }
    if wanted("faults") {
        faults::run(&gpus[0]);
    }
}
