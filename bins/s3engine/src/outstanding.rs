//! SIGUSR1: what the requests of a command wait for, told on stderr.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use s3engine::Engine;

/// A host service that does not answer is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The engine that a command uses now, if any.
#[derive(Clone, Default)]
pub(crate) struct Watched(Arc<Mutex<Option<Engine>>>);

/// Ends the watch.
#[must_use = "dropped, it ends the watch"]
pub(crate) struct Watch(Watched);

impl Watched {
    /// Watches an engine until what this returns is dropped.
    pub(crate) fn watch(&self, engine: &Engine) -> Watch {
        self.set(Some(engine.clone()));
        Watch(self.clone())
    }

    fn set(&self, engine: Option<Engine>) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = engine;
    }

    /// Tells what is outstanding, without waiting for that.
    pub(crate) fn tell(&self) {
        let watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = watched.clone();
        // What cannot be started is not told.
        let _ = thread::Builder::new()
            .name("outstanding".into())
            .spawn(move || {
                let text = engine.map_or("no engine runs\n".to_owned(), |engine| text(&engine));
                // Nobody to tell if stderr is closed.
                let _ = io::stderr().lock().write_all(text.as_bytes());
            });
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// One line for each request, the oldest first.
fn text(engine: &Engine) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let asked = runtime.map(|runtime| {
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, engine.outstanding()).await })
            .map_err(|_| format!("no answer from the host service within {PATIENCE:?}"))
    });
    match asked {
        Ok(Ok(Ok(all))) => {
            let lines: String = all.iter().map(|request| format!("  {request}\n")).collect();
            format!("{} requests outstanding\n{lines}", all.len())
        }
        Ok(Ok(Err(error))) => format!("requests outstanding are not known: {error}\n"),
        Ok(Err(why)) => format!("requests outstanding are not known: {why}\n"),
        Err(error) => format!("requests outstanding are not known: {error}\n"),
    }
}
