//! SIGHUP: who may attach, rules and the log are read again; a file that is wrong changes nothing.

use s3engine::service::Service;

use crate::config::{ConfigError, from_file};
use crate::logging::LogFilter;
use crate::serve::ServeArgs;
use crate::serve::file::File;
use crate::serve::plan::{Access, Plan};

/// What reading the file again needs to know.
pub(crate) struct Reload<'a> {
    args: &'a ServeArgs,
    /// As the service was started with it.
    started_with: File,
    names: Vec<String>,
    log: LogFilter,
    /// What is logged, unless the file says it.
    level: String,
    /// Whether a flag or the environment says it.
    log_is_set: bool,
}

impl<'a> Reload<'a> {
    pub(crate) fn new(args: &'a ServeArgs, plan: &Plan, log: LogFilter, level: &str) -> Self {
        let names = plan.endpoints.iter().map(|served| served.name.clone());
        Self {
            args,
            started_with: plan.file.clone(),
            names: names.collect(),
            log,
            level: level.to_owned(),
            log_is_set: plan.log_is_set,
        }
    }

    /// Reads the file, and tells in the log what became of it.
    pub(crate) fn run(&self, service: &Service) {
        let Some(path) = &self.args.config else {
            return tracing::info!("nothing to reload: there is no --config");
        };
        let read = from_file::<File>(path).and_then(|file| Ok((self.access(&file)?, file)));
        let (access, file) = match read {
            Ok(read) => read,
            Err(error) => {
                return tracing::error!(%error, "not reloaded: everything stays as it was");
            }
        };
        if !self.log_is_set {
            let filter = file.log_filter.as_deref().unwrap_or(&self.level);
            if let Err(error) = self.log.replace(filter) {
                return tracing::error!(%error, "not reloaded: everything stays as it was");
            }
        }
        let (allow, rules) = (access.allow.len(), access.rules.len());
        service.reload(access.allow, access.rules);
        tracing::info!(allow, rules, "reloaded");
        if file.fixed() != self.started_with.fixed() {
            tracing::warn!("what else changed in the file counts from the next start on");
        }
    }

    fn access(&self, file: &File) -> Result<Access, ConfigError> {
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        Access::of(self.args, file, &names)
    }
}
