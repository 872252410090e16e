//! A server that behaves like a model.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use s3engine_s3::fabric::loopback::{LoopbackError, RegistrationCost, RemoteWindow};

use crate::model::Model;
use crate::pace::{Desk, Line, Pace};

/// What names a slab to the server: who owns it, and the key of its registration.
type SlabKey = (Option<[u8; 16]>, u32);

/// The longest that an answer can be late, however many clients there are.
const LATEST: Duration = Duration::from_secs(600);

/// A model at work.
#[derive(Debug)]
pub(crate) struct Modelled {
    model: Model,
    line: Arc<Line>,
    /// Where RDMA GETs are served one at a time.
    desk: Desk,
    /// Registrations that were written to and have not ended.
    slabs: Mutex<HashMap<SlabKey, Slab>>,
    /// Has clients pay as long as this lives.
    _registrations: Option<RegistrationCost>,
}

#[derive(Debug)]
struct Slab {
    /// Tells when the registration has ended.
    window: RemoteWindow,
    far: bool,
    line: Option<Arc<Line>>,
}

impl Modelled {
    /// Starts it; `folder` is the loopback folder of clients, for a server that speaks RDMA.
    pub fn start(model: Model, folder: Option<Option<&Path>>) -> Result<Modelled, LoopbackError> {
        let registrations = folder
            .filter(|_| !model.register.is_zero())
            .map(|folder| RegistrationCost::publish(folder, model.register))
            .transpose()?;
        tracing::info!(model = %model.name, "everything from here on is simulated by a model");
        Ok(Modelled {
            line: Line::new(model.line_rate),
            desk: Desk::default(),
            slabs: Mutex::default(),
            _registrations: registrations,
            model,
        })
    }

    /// A request for an object: takes what each takes.
    pub async fn begin(&self) -> Pace {
        let mut pace = Pace::over(self.line.clone());
        pace.spend(self.model.operation).await;
        pace
    }

    /// An RDMA GET before its write: takes what it takes with that many clients.
    pub async fn admit(&self, pace: &mut Pace, clients: impl Fn() -> u64) {
        let Model { client, slow, .. } = self.model;
        if !client.is_zero() {
            let turn = || times(client, clients().saturating_sub(1));
            pace.take_turn(&self.desk, turn).await;
        }
        if !slow.is_zero() {
            let clients = clients();
            let factor = clients.saturating_mul(clients).saturating_sub(1);
            pace.spend(times(slow, factor)).await;
        }
    }

    /// Has the write into a window go at the rate of its slab. Of the registrations there are at a time
    /// every second one is far.
    pub fn find_slab(&self, pace: &mut Pace, key: SlabKey, window: &RemoteWindow) {
        let Model {
            near_rate,
            far_rate,
            ..
        } = self.model;
        if near_rate.is_none() && far_rate.is_none() {
            return;
        }
        let mut slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        if !slabs.contains_key(&key) {
            slabs.retain(|_, slab| !slab.window.is_revoked());
            let far = 2 * slabs.values().filter(|slab| slab.far).count() < slabs.len();
            let slab = Slab {
                window: window.clone(),
                far,
                line: if far { far_rate } else { near_rate }.map(Line::new),
            };
            slabs.insert(key, slab);
        }
        if let Some(line) = slabs.get(&key).and_then(|slab| slab.line.clone()) {
            pace.also_over(line);
        }
    }

    /// Prometheus text.
    pub fn to_prometheus(&self) -> String {
        let Model {
            name, line_rate, ..
        } = &self.model;
        format!(
            "# HELP s3sim_model_info The model that this server behaves like\n\
             # TYPE s3sim_model_info gauge\n\
             s3sim_model_info{{model=\"{name}\"}} 1\n\
             # HELP s3sim_model_line_rate_bytes_per_second What all that the model sends shares\n\
             # TYPE s3sim_model_line_rate_bytes_per_second gauge\n\
             s3sim_model_line_rate_bytes_per_second{{model=\"{name}\"}} {line_rate}\n"
        )
    }
}

fn times(time: Duration, factor: u64) -> Duration {
    time.saturating_mul(u32::try_from(factor).unwrap_or(u32::MAX))
        .min(LATEST)
}

#[cfg(test)]
#[path = "modelled_tests.rs"]
mod tests;
