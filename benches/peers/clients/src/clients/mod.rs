//! The clients, each driven in the way that its documents advise, and each with as many tasks as requests in flight.

mod aws;
mod hyper;
mod object_store;
mod s3engine;

use std::sync::Arc;
use std::thread;

use ::s3engine::Driver;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use crate::window::{Measured, Turns};
use crate::work::{Result, Work};
use crate::{floor, memory};

/// Runs one client and prints what was measured, in one line.
pub fn run(work: &Work) -> Result<()> {
    let measured = match work.client.as_str() {
        "floor" => floor::run(work),
        "s3engine" => s3engine::run(work, None),
        "s3engine_epoll" => s3engine::run(work, Some(Driver::Epoll)),
        "hyper" => drive(work, |_| hyper::Hyper::new(work)),
        "object_store" => drive(work, |_| object_store::Store::new(work, false)),
        "object_store_range" => drive(work, |_| object_store::Store::new(work, true)),
        "aws_sdk" => drive(work, |_| aws::Sdk::new(work)),
        "transfer_manager" => drive(work, |runtime| aws::Manager::new(work, runtime)),
        other => Err(format!("no client is called {other}").into()),
    }?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// One request of a client: the bytes of a range, or of the whole object, to a place.
trait Client: Send + Sync + 'static {
    fn get(
        &self,
        range: Option<(usize, usize)>,
        place: &mut [u8],
    ) -> impl Future<Output = Result<usize>> + Send;
}

/// Drives a client: a task for each request in flight, since one task does all its copies on one processor.
fn drive<C: Client>(work: &Work, client: impl FnOnce(&Runtime) -> Result<C>) -> Result<Measured> {
    let shape = Arc::new(work.shape.clone());
    let runtime = Builder::new_multi_thread()
        .worker_threads(shape.threads)
        .enable_all()
        .build()?;
    let client = Arc::new(client(&runtime)?);
    let all = memory::touched(shape.each() * shape.places())?;
    let places: Arc<Vec<_>> = Arc::new(all.chunks_mut(shape.each()).map(Mutex::new).collect());
    let turns = Arc::new(Turns::default());
    let tasks: Vec<_> = (0..shape.in_flight)
        .map(|_| {
            let (client, places) = (Arc::clone(&client), Arc::clone(&places));
            let (turns, shape) = (Arc::clone(&turns), Arc::clone(&shape));
            runtime.spawn(async move {
                while let Some(nth) = turns.next() {
                    let place = nth % places.len();
                    let got = client
                        .get(shape.range(place), &mut places[place].lock().await)
                        .await?;
                    if got != shape.each() {
                        return Err(
                            format!("{got} bytes came, {} were asked for", shape.each()).into()
                        );
                    }
                    turns.did();
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        })
        .collect();
    let measured = turns.lead(shape.window(), thread::sleep);
    for task in tasks {
        runtime.block_on(task)??;
    }
    Ok(measured)
}

/// Puts what comes piece by piece to its place.
fn put(place: &mut [u8], at: &mut usize, piece: &[u8]) -> Result<()> {
    let room = place
        .get_mut(*at..*at + piece.len())
        .ok_or("more bytes than were asked for")?;
    room.copy_from_slice(piece);
    *at += piece.len();
    Ok(())
}
