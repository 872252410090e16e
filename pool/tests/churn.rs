//! Clients that come and go leave nothing behind. Alone in its process, whose descriptors and mappings it counts.

use std::sync::Arc;

use books::{Books, pool_with, wait_until};
use s3engine_pool::{ClientOptions, ImportedSlab, Memory};

mod books;

const MIB: u64 = 1 << 20;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn slab_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("s3engine-slab").count()
}

#[test]
fn two_hundred_clients_leave_no_memory_no_mapping_and_no_descriptor() {
    let books = Arc::<Books>::default();
    let host = pool_with(&books, 16 * MIB);
    let before = descriptors();
    for nth in 0..200 {
        let options = ClientOptions {
            slab_bytes: Some(2 * MIB),
            read_only: nth % 3 == 0,
            ..ClientOptions::named(format!("client {nth}"))
        };
        let pool = host.for_client(options).unwrap();
        let wait = std::time::Duration::from_secs(20);
        let buffer = pool.alloc(MIB, Memory::Host, wait).unwrap();
        let slab = buffer.slot().slab;
        let export = pool.export(slab).unwrap();
        let imported = ImportedSlab::map(
            export.share.fd().unwrap(),
            export.len,
            slab,
            export.read_only,
        )
        .unwrap();
        match nth % 4 {
            // Dies with a lease, with one in doubt, properly, and with one that is used after it.
            0 => drop(pool),
            1 => {
                let mut landing = buffer.into_landing();
                let mut window = landing.window(0, MIB).unwrap();
                window.arm(host.fabric(0).unwrap()).unwrap();
            }
            2 => {
                drop(buffer);
                pool.retire();
            }
            _ => {
                drop(pool);
                assert!(buffer.as_slice().is_some());
            }
        }
        drop(imported);
    }
    wait_until("all is given back", || {
        let stats = host.stats();
        (stats.clients, stats.mapped, stats.leased, stats.quarantined) == (0, 0, 0, 0)
    });
    assert_eq!(host.stats().slabs_made, 200);
    assert_eq!(books.live(), 0);
    assert_eq!((descriptors(), slab_mappings()), (before, 0));
}
