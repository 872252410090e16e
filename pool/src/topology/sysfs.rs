//! What the files of sysfs say. Each is read up to a bound; one that is not there, or that says nothing that can be
//! understood, is not known.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::OFlags;

use super::{Nic, NicPort, NumaNode, PciAddress, PciDevice, PciLink, PciPath, hex};

/// Files of sysfs are a page or a few; another file is none of them.
const MOST_BYTES: u64 = 64 << 10;
/// No host has more of anything that is looked for.
const MOST_ENTRIES: usize = 4096;
/// More processors than the kernel can be built for.
const MOST_CPUS: u32 = 1 << 13;

pub(super) fn nodes(sys: &Path) -> Vec<NumaNode> {
    let folder = sys.join("devices/system/node");
    let number = |name: String| Some((name.strip_prefix("node")?.parse().ok()?, name));
    let numbers = names(&folder).into_iter().filter_map(number);
    let node = |(id, name): (u32, String)| {
        let node = folder.join(name);
        NumaNode {
            id,
            cpus: read(&node.join("cpulist"), cpu_list).unwrap_or_default(),
            memory: read(&node.join("meminfo"), memory),
        }
    };
    let mut nodes: Vec<_> = numbers.map(node).collect();
    nodes.sort_by_key(|node| node.id);
    nodes.dedup_by_key(|node| node.id);
    nodes
}

/// `0-55,112-167`.
pub(super) fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (number(first)?, number(last)?);
        if last < first || last >= MOST_CPUS || cpus.len() > MOST_CPUS as usize {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// `Node 0 MemTotal:  1056270520 kB`, among other lines.
fn memory(text: &str) -> Option<u64> {
    let total = |line: &str| Some(line.split_once("MemTotal:")?.1.to_owned());
    let total = text.lines().find_map(total)?;
    let kib: u64 = number(total.trim().strip_suffix("kB")?)?;
    kib.checked_mul(1024)
}

pub(super) fn nics(sys: &Path) -> Vec<Nic> {
    let folder = sys.join("class/infiniband");
    let nic = |name: String| {
        let nic = folder.join(&name);
        let at = fs::canonicalize(nic.join("device")).ok();
        let address = at.as_deref().and_then(address_of);
        Nic {
            pci: address.map(|address| device(sys, address)),
            ports: ports(&nic.join("ports")),
            name,
        }
    };
    names(&folder).into_iter().map(nic).collect()
}

fn ports(folder: &Path) -> Vec<NicPort> {
    let port = |name: String| {
        let port = folder.join(&name);
        Some(NicPort {
            number: number(&name)?,
            // `400 Gb/sec (4X NDR)`, and `4: ACTIVE`.
            gbit_per_s: read(&port.join("rate"), first_number),
            up: read(&port.join("state"), |text| Some(text.contains("ACTIVE")))?,
        })
    };
    let mut ports: Vec<_> = names(folder).into_iter().filter_map(port).collect();
    ports.sort_by_key(|port| port.number);
    ports
}

pub(super) fn device(sys: &Path, address: PciAddress) -> PciDevice {
    let folder = sys.join("bus/pci/devices").join(address.to_string());
    // `32.0 GT/s PCIe`; a link that is down has no lanes, or 63.
    let speed = |file: &str| read(&folder.join(file), first_number);
    let width =
        |file: &str| read(&folder.join(file), number).filter(|width| (1..=32).contains(width));
    PciDevice {
        address,
        // -1 is none.
        numa_node: read(&folder.join("numa_node"), number),
        path: fs::canonicalize(&folder).ok().and_then(|at| path(&at)),
        link: PciLink {
            gt_per_s: speed("current_link_speed"),
            width: width("current_link_width"),
            max_gt_per_s: speed("max_link_speed"),
            max_width: width("max_link_width"),
        },
    }
}

/// `570.133.20`.
pub(super) fn nvidia_driver(sys: &Path) -> Option<String> {
    let version = |text: &str| {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        let fine = (1..=64).contains(&text.len()) && text.bytes().all(fine);
        fine.then(|| text.to_owned())
    };
    read(&sys.join("module/nvidia/version"), version)
}

/// `.../pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0`: a host bridge, bridges, the device.
fn path(at: &Path) -> Option<PciPath> {
    address_of(at)?;
    // The device itself is none of the bridges.
    let mut ancestors = at.ancestors().skip(1);
    let mut bridges = Vec::new();
    let root = loop {
        let ancestor = ancestors.next()?;
        match address_of(ancestor) {
            Some(bridge) => bridges.push(bridge),
            None => break ancestor,
        }
    };
    let (domain, bus) = root
        .file_name()?
        .to_str()?
        .strip_prefix("pci")?
        .split_once(':')?;
    hex(domain, 4..=8).and(hex(bus, 2..=2))?;
    bridges.reverse();
    Some(PciPath {
        root: root.to_owned(),
        bridges,
    })
}

fn address_of(folder: &Path) -> Option<PciAddress> {
    folder.file_name()?.to_str()?.parse().ok()
}

/// Names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries
        .take(MOST_ENTRIES)
        .map(|entry| entry.file_name().into_string());
    let mut names: Vec<_> = names.flatten().collect();
    names.sort_unstable();
    names
}

/// A file's text, if it has any.
pub(super) fn text(file: &Path) -> Option<String> {
    read(file, |text| (!text.is_empty()).then(|| text.to_owned()))
}

/// A file's text, understood.
fn read<T>(file: &Path, understood: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut text = String::new();
    let read = open(file)?
        .take(MOST_BYTES)
        .read_to_string(&mut text)
        .ok()?;
    if read as u64 == MOST_BYTES {
        return None;
    }
    understood(text.trim())
}

/// Where something else lies in its place, it is not waited for.
fn open(file: &Path) -> Option<File> {
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(file)
        .ok()?;
    opened.metadata().ok()?.is_file().then_some(opened)
}

/// Digits, with no sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let text = text.trim();
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// A number over 0, and then other words.
fn first_number(text: &str) -> Option<f64> {
    let number = text.split_whitespace().next()?.parse().ok()?;
    (f64::is_finite(number) && number > 0.0).then_some(number)
}
