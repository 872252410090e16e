//! The fabric of NVIDIA's library over a stand-in for it, and the library itself where this host has it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fabric_standin::Copied;
use s3engine::probe::{Depth, Vendor, in_child};
use s3engine::{CufileOptions, Path as Way, Policy, PoolOptions, Rdma, Reason};
use s3engine_tests::{PATIENCE, Rig};
use s3sim::content;
use tempfile::TempDir;

const PROBER: &str = env!("CARGO_BIN_EXE_prober");
const KEY: &str = "300KiB-x";

struct Setup {
    rig: Rig,
    standin: Copied,
    _folder: TempDir,
}

fn setup(library: Copied, folder: TempDir, options: impl FnOnce(&mut CufileOptions)) -> Setup {
    let library = library.noting_calls();
    let mut cufile = CufileOptions {
        file: Some(library.path().into()),
        prober: Some(PROBER.into()),
        modules: "/".into(),
        call_timeout: PATIENCE,
    };
    options(&mut cufile);
    let mut placed = None;
    let rig = Rig::with([], |builder, loopback| {
        placed = Some(library.loopback(loopback));
        builder.rdma(Rdma::Cufile(cufile)).pool(PoolOptions {
            slab_bytes: 4 << 20,
            max_bytes: Some(32 << 20),
            revoke_timeout: PATIENCE,
            ..PoolOptions::default()
        })
    });
    Setup {
        rig,
        standin: placed.unwrap(),
        _folder: folder,
    }
}

fn with_faults(faults: &str, options: impl FnOnce(&mut CufileOptions)) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    setup(
        cufile_standin::copied(folder.path()).faults(faults),
        folder,
        options,
    )
}

impl Setup {
    fn assert_fails(&self, reason: Reason, words: &str) {
        let refused = self.rig.get_whole(Policy::RequireRdma, KEY);
        let told = format!("{:#}", refused.error().unwrap());
        assert_eq!(
            (refused.path(), refused.reason()),
            (Way::None, reason),
            "{told}"
        );
        assert!(told.contains(words) && told.len() < 2000, "{told}");
        drop(refused);
        let other = self.rig.get_whole(Policy::PreferRdma, KEY);
        assert_eq!((other.path(), other.reason()), (Way::Http, reason));
        let fallback = other.fallback().unwrap();
        assert!(fallback.detail.contains(words), "{}", fallback.detail);
        content::verify(KEY, 0, 0, other.data().unwrap()).unwrap();
        drop(other);
        self.rig.assert_drains();
    }
}

#[test]
fn each_fault_of_the_library_has_its_own_reason_and_its_code() {
    for (faults, reason, words) in [
        (
            "cuFileBufRegister=5045",
            Reason::RegistrationFailed,
            "cuFile 5045 (registration of the buffer failed)",
        ),
        (
            "cuFileBufRegister=-12",
            Reason::RegistrationFailed,
            "Cannot allocate memory",
        ),
        (
            "DescStrGet=5024",
            Reason::TokenFailed,
            "cuFile 5024 (not registered)",
        ),
        (
            "DescStrGet=garbage",
            Reason::TokenFailed,
            "exactly 81 bytes",
        ),
        (
            "DescStrGet=endless",
            Reason::TokenFailed,
            "exactly 81 bytes",
        ),
        ("DescStrGet=silent", Reason::TokenFailed, "exactly 81 bytes"),
    ] {
        println!("{faults}");
        with_faults(faults, |_| {}).assert_fails(reason, words);
    }
}

#[test]
fn a_library_that_hangs_is_killed_in_a_process_of_its_own_and_never_loaded_here() {
    let brief = |options: &mut CufileOptions| options.call_timeout = Duration::from_millis(300);
    let s = with_faults("cuFileGetVersion=hangs", brief);
    s.assert_fails(Reason::FabricInitFailed, "within 0.3 s, and was killed");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = s.standin.path().display().to_string();
    assert!(!maps.contains(&path), "it was loaded here");
}

#[test]
fn without_the_kernels_list_of_modules_the_library_is_not_even_tried() {
    let nowhere = |options: &mut CufileOptions| {
        options.modules = "/nowhere/modules".into();
        options.prober = Some("/nowhere/prober".into());
    };
    let s = with_faults("", nowhere);
    s.assert_fails(Reason::FabricInitFailed, "/nowhere/modules is missing here");
    assert_eq!(s.standin.calls(), []);
}

#[test]
fn a_library_of_that_name_that_is_too_old_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let old = Copied::of("cufile_old_standin", folder.path());
    let s = setup(old, folder, |_| {});
    for words in [
        "has version 1.15 and lacks _Z20cuFileRDMADescStrGet",
        "PyTorch wheel",
    ] {
        s.assert_fails(Reason::FabricInitFailed, words);
    }
}

#[test]
fn what_is_no_cufile_is_told() {
    let brief = |options: &mut CufileOptions| options.file = Some("libc.so.6".into());
    let s = with_faults("", brief);
    s.assert_fails(Reason::FabricInitFailed, "it is not libcufile");
}

#[test]
fn memory_is_registered_once_however_many_gets_there_are() {
    let s = with_faults("", |_| {});
    for _ in 0..20 {
        let done = s.rig.get_whole(Policy::RequireRdma, KEY);
        assert!(done.is_ok(), "{:?}", done.error());
        content::verify(KEY, 0, 0, done.data().unwrap()).unwrap();
    }
    let stats = s.rig.engine.pool().stats();
    // One of each was that of the process that tried it.
    assert_eq!(
        s.standin.count("cuFileBufRegister") as u64,
        stats.slabs_made + 1
    );
    assert_eq!(s.standin.count("DescStrGet"), 20 + 1);
    assert_eq!(s.standin.count("DescStrPut"), 20 + 1);
}

/// The library itself, from the variable or from a Python package.
fn real() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("S3ENGINE_CUFILE_TEST_LIBRARY") {
        return Some(path.into());
    }
    let script = "import nvidia, pathlib; print(next(p for d in nvidia.__path__ for p in pathlib.Path(d).rglob('libcufile.so.0')))";
    let said = Command::new("python3").args(["-c", script]).output().ok()?;
    let path = String::from_utf8(said.stdout).ok()?;
    said.status.success().then(|| path.trim().into())
}

/// With the library itself, from NVIDIA's wheel: what it is, and what it says to a registration where there is no RDMA
/// device; within a bound, whatever it does.
#[test]
fn the_library_itself_is_tried_within_a_bound() {
    let Some(library) = real() else {
        println!(
            "skipped: no libcufile here (pip install nvidia-cufile, or S3ENGINE_CUFILE_TEST_LIBRARY)"
        );
        return;
    };
    println!("{}", library.display());
    let bound = Duration::from_secs(20);
    let tried = in_child(
        Some(Path::new(PROBER)),
        (Vendor::Cufile, Depth::Host),
        Some(&library),
        bound,
    );
    println!("{tried:?}");
    if !Path::new("/proc/modules").exists() {
        // The known endless loop.
        let error = tried.expect_err("it loops").to_string();
        assert!(error.contains("within 20 s, and was killed"), "{error}");
        return;
    }
    let report = tried.unwrap();
    let version = report.version.unwrap();
    assert!(version.starts_with("1."), "{version}");
    assert_eq!(
        report.loaded_from.unwrap().file_name(),
        Some(OsStr::new("libcufile.so.0"))
    );
    let has_devices = Path::new("/sys/class/infiniband").exists();
    if !has_devices {
        let why = report.registration.expect("no device to register with");
        assert!(why.contains("cuFile 50"), "{why}");
    }
}
