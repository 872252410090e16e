//! Everything that can be asked about an object, in the same way of an engine and of a client of the host service.

use s3engine::{Completion, Engine, Error, Get, ListQuery, Memory, Policy};
use s3sim::{Listed, content};

use crate::{PATIENCE, Rig, ServiceRig, assert_invariants, block_on};

/// An object, and what it must be.
#[derive(Clone, Debug)]
pub struct Thing {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Thing {
    /// Of any server.
    pub fn new(bucket: &str, key: &str, bytes: Vec<u8>) -> Self {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Self { bucket, key, bytes }
    }

    /// A version of a synthetic object of the simulator.
    pub fn synthetic(key: &str, version: u64) -> Self {
        let size = content::size_of_key(key).expect("the key says its size");
        let mut bytes = vec![0; size as usize];
        content::fill(key, version, 0, &mut bytes);
        Self::new("bench", key, bytes)
    }

    /// The names that the simulator must list so that [`nth`](Self::nth) is among them.
    pub fn listed() -> Listed {
        Listed {
            count: 20,
            size: 200_003,
            prefix: "field/".into(),
        }
    }

    /// One of the simulator's listed objects, none of which has a round size.
    pub fn nth(nth: usize) -> Self {
        Self::synthetic(&format!("field/200003-{nth:010}"), 0)
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// What the server says about it.
    Head,
    /// The names that begin with its key.
    List,
    /// All of it, into memory that the engine leases when it knows the size.
    Whole,
    /// All of it, into a buffer of its size.
    Given,
    /// All of it, into a buffer that is larger, and no other.
    Fixed,
    /// A range that takes several requests where the object does.
    Range,
    /// A range of one request.
    Piece,
    /// A range of which the object has only the beginning.
    Reaching,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Head,
        Self::List,
        Self::Whole,
        Self::Given,
        Self::Fixed,
        Self::Range,
        Self::Piece,
        Self::Reaching,
    ];

    /// Those that bring bytes.
    pub const GETS: [Self; 6] = [
        Self::Whole,
        Self::Given,
        Self::Fixed,
        Self::Range,
        Self::Piece,
        Self::Reaching,
    ];

    /// Those that bring the bytes of several requests, where the object is larger than one brings.
    pub const OF_PARTS: [Self; 4] = [Self::Whole, Self::Given, Self::Fixed, Self::Range];

    /// Asks. Panics where the answer is a success and not the truth.
    pub fn ask(self, engine: &Engine, policy: Policy, thing: &Thing) -> Result<(), Error> {
        match self {
            Self::Head => {
                let info = block_on(engine.head(&thing.bucket, &thing.key))?;
                assert_eq!(info.size, Some(thing.bytes.len() as u64), "{}", thing.key);
                Ok(())
            }
            Self::List => list(engine, thing),
            _ => self.get(engine, policy, thing).map(drop),
        }
    }

    /// Asks for bytes.
    pub fn get(self, engine: &Engine, policy: Policy, thing: &Thing) -> Result<Completion, Error> {
        let (offset, len) = self.range(thing);
        let get = Get::new(&*thing.bucket, &*thing.key).policy(policy);
        let buffer = |len: usize| {
            let buffer = engine.pool().alloc(len as u64, Memory::Host, PATIENCE);
            buffer.expect("memory")
        };
        let size = thing.bytes.len();
        let get = match self {
            Self::Given => get.into(buffer(size.max(1))),
            Self::Fixed => get.into_fixed(buffer(size + 1000)),
            Self::Range | Self::Piece | Self::Reaching => get.range(offset as u64, len as u64),
            _ => get,
        };
        let end = block_on(engine.get(get));
        assert_invariants(&end, policy);
        if let Some(error) = end.error() {
            return Err(error.clone());
        }
        let wanted = &thing.bytes[offset..(offset + len).min(size)];
        let found = end.data().unwrap_or_default();
        let first_wrong = || wanted.iter().zip(found).position(|(a, b)| a != b);
        assert!(
            found == wanted,
            "{self:?} of {}: {} bytes of {}, the first wrong one at {:?}: {end:?}",
            thing.key,
            found.len(),
            wanted.len(),
            first_wrong()
        );
        Ok(end)
    }

    /// Where in the object it begins, and how much it asks for.
    fn range(self, thing: &Thing) -> (usize, usize) {
        let size = thing.bytes.len();
        match self {
            Self::Range => (size / 9, size - size / 8),
            Self::Piece => (size / 3, (size / 4).clamp(1, 10_000)),
            Self::Reaching => (size.saturating_sub((size / 5).max(1)), size.max(2)),
            _ => (0, size),
        }
    }
}

fn list(engine: &Engine, thing: &Thing) -> Result<(), Error> {
    let query = ListQuery {
        prefix: thing.key.clone(),
        ..ListQuery::default()
    };
    let mut lister = engine.list(&thing.bucket, query);
    let mut found = Vec::new();
    while let Some(page) = block_on(lister.next())? {
        found.extend(page.objects);
    }
    let this = found.iter().find(|object| object.key == thing.key);
    let size = this.map(|object| object.size);
    assert_eq!(
        size,
        Some(thing.bytes.len() as u64),
        "{}: {found:?}",
        thing.key
    );
    Ok(())
}

/// Who is asked.
pub struct Hosted<'a> {
    /// `embedded` or `served`.
    pub name: &'static str,
    /// Whom to ask.
    pub engine: &'a Engine,
    /// The server, and the engine over it.
    pub rig: &'a Rig,
}

/// Runs a test with an engine in this process, and with a client of a host service; afterwards all memory must be back.
pub fn on_both_hosts(make: impl Fn() -> Rig, test: impl Fn(&Hosted<'_>)) {
    let rig = make();
    test(&Hosted {
        name: "embedded",
        engine: &rig.engine,
        rig: &rig,
    });
    rig.assert_drains();
    drop(rig);
    let host = ServiceRig::with(make(), |_| {});
    let client = host.client();
    test(&Hosted {
        name: "served",
        engine: &client,
        rig: &host.rig,
    });
    drop(client);
    host.assert_drains();
}
