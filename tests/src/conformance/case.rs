//! One GET of the matrix: policy, fault, shape, destination.

use std::fmt;

use s3engine::{Buffer, Engine, Get, Memory, Policy};
use s3engine_pool::SlotId;
use s3sim::{Action, Kind, Rule};

use super::fault::{Ends, Fault, When};
use crate::watch::fill;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An object of one part.
    Whole,
    /// A range of one part, within the object.
    Range,
    /// An object of several parts.
    Parts,
    /// A range of several parts.
    RangeOfParts,
    /// A range of which the object has only the beginning.
    Reaching,
    /// A range that begins where the object ends.
    Beyond,
    /// An object without bytes.
    Empty,
    /// A range of no bytes.
    NoBytes,
    /// An object under the threshold.
    Small,
    /// An object that is not there.
    Missing,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Whole,
        Self::Range,
        Self::Parts,
        Self::RangeOfParts,
        Self::Reaching,
        Self::Beyond,
        Self::Empty,
        Self::NoBytes,
        Self::Small,
        Self::Missing,
    ];

    /// The object's size; none where there is no object.
    pub fn size(self) -> Option<u64> {
        Some(match self {
            Self::Whole => 20_011,
            Self::Range | Self::Reaching | Self::Beyond | Self::NoBytes => 50_021,
            Self::Parts => 200_003,
            Self::RangeOfParts => 250_007,
            Self::Empty => 0,
            Self::Small => 3_001,
            Self::Missing => return None,
        })
    }

    /// The range asked for; none for the whole object.
    pub fn range(self) -> Option<(u64, u64)> {
        match self {
            Self::Range => Some((1_001, 20_011)),
            Self::RangeOfParts => Some((1_001, 199_999)),
            Self::Reaching => Some((40_009, 30_000)),
            Self::Beyond => Some((50_021, 20_000)),
            Self::NoBytes => Some((7, 0)),
            Self::Whole | Self::Parts | Self::Empty | Self::Small | Self::Missing => None,
        }
    }

    /// Where the bytes begin in the object, and how many there are to deliver.
    pub fn delivered(self) -> (u64, u64) {
        let size = self.size().unwrap_or_default();
        let (offset, len) = self.range().unwrap_or((0, size));
        (offset, len.min(size - offset))
    }

    /// Whether the object is asked for without a range.
    pub fn is_whole(self) -> bool {
        self.range().is_none()
    }

    /// Whether it takes several requests.
    pub fn is_of_parts(self) -> bool {
        matches!(self, Self::Parts | Self::RangeOfParts)
    }

    /// Whether an honest server says that it cannot be had.
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Beyond | Self::Missing)
    }

    /// Bytes that a buffer for it needs.
    fn room(self) -> u64 {
        match self {
            // As for an object that might be there.
            Self::Empty | Self::Missing => 20_000,
            shape => shape.range().map_or(shape.delivered().1, |(_, len)| len),
        }
    }
}

/// Where the bytes are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Memory that the engine leases.
    Leased,
    /// A buffer, for which another one may come back.
    Given,
    /// A buffer and no other.
    Fixed,
}

impl Destination {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Leased, Self::Given, Self::Fixed];
}

/// One GET of the matrix.
#[derive(Clone, Debug)]
pub struct Case {
    /// What the caller allows.
    pub policy: Policy,
    /// What goes wrong.
    pub fault: Fault,
    /// Which requests the fault hits.
    pub when: When,
    /// What is asked for.
    pub shape: Shape,
    /// Where it goes.
    pub into: Destination,
    /// In memory of which kind.
    pub memory: Memory,
    /// The object's key, which no other case has.
    pub key: String,
}

/// A given buffer is larger than needed by this much.
pub const SPARE: u64 = 1_000;
/// The status of a request that must not be made.
pub const FORBIDDEN: u16 = 418;

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            policy,
            when,
            shape,
            into,
            ..
        } = self;
        let fault = self.fault.name;
        write!(f, "{policy}, {fault} ({when:?}), {shape:?}, {into:?}")
    }
}

impl Case {
    /// All shapes and destinations under all policies, for one fault.
    pub fn all_of(fault: &Fault, memory: Memory) -> Vec<Self> {
        let mut cases = Vec::new();
        for &policy in Policy::ALL {
            for shape in Shape::ALL {
                for into in Destination::ALL {
                    for &when in fault.whens {
                        let case = Self {
                            policy,
                            fault: fault.clone(),
                            when,
                            shape,
                            into,
                            memory,
                            key: key(fault, (policy, when, shape, into)),
                        };
                        cases.extend((case.can_be() && case.is_of_its_own()).then_some(case));
                    }
                }
            }
        }
        cases
    }

    /// Whether there is such a GET: what the engine leases is memory of the host.
    fn can_be(&self) -> bool {
        self.into != Destination::Leased || self.memory == Memory::Host
    }

    /// Whether no other case shows the same. A fault that nothing can show is tried on two shapes.
    fn is_of_its_own(&self) -> bool {
        let shown = self.can_show_fault();
        match self.when {
            When::Always => shown || matches!(self.shape, Shape::Whole | Shape::Parts),
            When::Once => shown,
            When::Later => shown && self.shape.is_of_parts(),
        }
    }

    /// Whether the fault hits a request that this case may make, in an answer that shows it.
    fn can_show_fault(&self) -> bool {
        let Fault {
            rules, needs_bytes, ..
        } = &self.fault;
        let made = |kind: &Kind| match kind {
            _ if self.shape == Shape::NoBytes => false,
            Kind::Rdma => self.policy != Policy::Http,
            Kind::Http => self.policy != Policy::RequireRdma,
            _ => self.begins_with_head(),
        };
        let shown = |kind: &Kind| !needs_bytes.contains(kind) || self.shape.delivered().1 > 0;
        let shows = |(kind, _): &(Kind, Action)| made(kind) && shown(kind);
        rules.is_empty() || rules.iter().any(shows)
    }

    /// Whether a HEAD comes first, since nothing says how much memory is needed.
    pub fn begins_with_head(&self) -> bool {
        self.into == Destination::Leased && self.shape.is_whole()
    }

    fn tripwire(&self) -> Option<Rule> {
        let forbidden = match self.policy {
            Policy::RequireRdma => Kind::Http,
            Policy::Http => Kind::Rdma,
            Policy::PreferRdma => return None,
        };
        let action = Action::Status {
            code: FORBIDDEN,
            s3_code: None,
            headers: Default::default(),
        };
        let of_policy = format!("*-{}.*", self.policy);
        Some(Rule::new(action).only(forbidden).key(&of_policy))
    }

    fn rules(&self) -> impl Iterator<Item = Rule> {
        let all = format!("*.{:?}.*", self.when);
        self.fault.rules.iter().map(move |(kind, action)| {
            let rule = Rule::new(action.clone()).only(*kind);
            match self.when {
                When::Always => rule.key(&all),
                When::Once => rule.key(&self.key).count(1),
                When::Later => rule.key(&self.key).skip(1).count(1),
            }
        })
    }

    fn first(&self) -> Option<Rule> {
        let action = self.fault.first.clone()?;
        let rule = Rule::new(action).only(Kind::Rdma);
        Some(rule.key(&self.key).count(1))
    }

    /// Whether its memory is gone for good once it is in doubt.
    pub fn is_lost_in_doubt(&self) -> bool {
        self.fault.unconfirmed && self.into == Destination::Fixed
    }

    /// The GET; with its buffer, where it has one, filled with a pattern. Tells the buffer's slot.
    pub fn get(&self, engine: &Engine) -> (Get, Option<SlotId>) {
        let mut get = Get::new("bench", &*self.key).policy(self.policy);
        if let Some((offset, len)) = self.shape.range() {
            get = get.range(offset, len);
        }
        if let Some(Ends::Deadline(deadline)) = self.fault.ends {
            get = get.deadline(deadline);
        }
        if self.into == Destination::Leased {
            return (get, None);
        }
        let buffer = self.buffer(engine);
        let slot = buffer.slot();
        let get = match self.into {
            Destination::Fixed => get.into_fixed(buffer),
            _ => get.into(buffer),
        };
        (get, Some(slot))
    }

    fn buffer(&self, engine: &Engine) -> Buffer {
        let len = self.shape.room() + SPARE;
        let buffer = engine.pool().try_alloc(len, self.memory);
        let mut buffer = buffer.expect("the pool has room for a batch");
        fill(&mut buffer);
        buffer
    }
}

/// The simulator's script for some cases: what goes wrong, after tripwires for requests that a policy forbids.
pub fn script(cases: &[Case]) -> Vec<Rule> {
    // The first rule that matches decides, so the narrow ones come first.
    let tripwires = cases.iter().flat_map(Case::tripwire);
    let firsts = cases.iter().flat_map(Case::first);
    let faults = cases.iter().flat_map(Case::rules);
    let mut script = Vec::new();
    for rule in tripwires.chain(firsts).chain(faults) {
        // Rules without a count serve many cases.
        if !script.contains(&rule) {
            script.push(rule);
        }
    }
    script
}

/// Says size, policy and timing, for the simulator and its rules; and the rest, so that no two cases share one.
fn key(fault: &Fault, (policy, when, shape, into): (Policy, When, Shape, Destination)) -> String {
    let size = shape.size();
    let size = size.map_or("missing".into(), |size| size.to_string());
    let fault = fault.name.replace([' ', ','], "-");
    format!("{size}-{policy}.{when:?}.{fault}-{shape:?}-{into:?}")
}
