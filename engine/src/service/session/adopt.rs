//! Device memory that a client has allocated itself: imported for it alone, and counted as long as it is remembered.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use s3engine_pool::cuda::CudaShare;
use s3engine_pool::{Buffer, Pool, PoolError, SlabId};

use super::answers::Answered;
use super::{Answers, Session};
use crate::control::{Failure, IpcHandle, Leased, Said};
use crate::service::counted::Taken;
use crate::service::files::OF_SLAB;

/// What came with an ask.
#[derive(Default)]
pub(super) struct Brought {
    pub(super) fd: Option<OwnedFd>,
    /// For the descriptor, and what is made of it.
    pub(super) files: Option<Taken>,
}

/// What the client shares its memory by: a handle, or the descriptor that came along.
pub(super) fn share(
    handle: Option<IpcHandle>,
    fd: Option<OwnedFd>,
) -> Result<CudaShare<OwnedFd>, Failure> {
    match (handle, fd) {
        (Some(handle), None) => Ok(CudaShare::Ipc(handle.0)),
        (None, Some(fd)) => Ok(CudaShare::Descriptor(fd)),
        _ => Err(Failure::Refused(
            "either a handle or one descriptor of the memory is wanted".to_owned(),
        )),
    }
}

impl Session {
    /// Takes what came with an ask to adopt memory, which may have to wait.
    pub(super) fn bring(&self, fds: Vec<OwnedFd>) -> Result<Brought, Failure> {
        Ok(Brought {
            files: Some(self.files(OF_SLAB)?),
            fd: fds.into_iter().next(),
        })
    }

    /// A slot of memory that `adopt` adopts. Goes on to its end where nobody waits for the answer any more: what is
    /// remembered then is counted.
    pub(super) async fn adopt(
        self: &Rc<Self>,
        adopt: impl FnOnce(&Pool) -> Result<Buffer, PoolError> + Send + 'static,
        files: Option<Taken>,
        answers: &Answers,
    ) -> Answered {
        let (this, answers) = (Rc::downgrade(self), answers.clone());
        let pool = self.facts.tenant.pool.clone();
        let adopted = tokio::task::spawn_local(async move {
            // Importing takes time.
            let adopted = tokio::task::spawn_blocking(move || adopt(&pool)).await;
            let buffer = adopted.map_err(|_| no_answer())??;
            if let Some(files) = files
                && let Some(this) = this.upgrade()
            {
                this.remember(buffer.slot().slab, files, &answers);
            }
            Ok::<_, Failure>(buffer)
        });
        let buffer = adopted.await.map_err(|_| no_answer())??;
        let leased = Leased {
            slot: buffer.slot().into(),
            offset: buffer.offset(),
            slab: None,
        };
        self.facts.leases.put(buffer);
        Ok((Said::Leased(leased), Vec::new()))
    }

    fn remember(self: &Rc<Self>, slab: SlabId, files: Taken, answers: &Answers) {
        self.let_go();
        self.shared.borrow_mut().insert(slab, Some(files));
        self.watch(slab, answers);
    }

    /// Forgets memory of the client's. Revoking its registrations takes time.
    pub(super) async fn disown(&self, slab: SlabId) -> Answered {
        let pool = self.facts.tenant.pool.clone();
        let forgotten = tokio::task::spawn_blocking(move || pool.forget_shared(slab));
        let forgotten = forgotten.await.map_err(|_| no_answer())??;
        self.let_go();
        Ok((Said::Disowned(forgotten), Vec::new()))
    }
}

fn no_answer() -> Failure {
    Failure::Refused("the client's memory could not be adopted".to_owned())
}
