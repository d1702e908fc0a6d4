//! What is shown to clients whose queries are encrypted, and what they have to show. The files are read again when they
//! change: who connects then is shown what they say, and who is connected stays so.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use egret_shared::rt::task;
use tokio_rustls::rustls::ServerConfig;

use crate::config::model::{Scheme, ServerTls};
use crate::encryption::server_config;
use crate::upstream::TlsError;
use crate::zones::Metrics;

use super::{ActiveConfig, InvalidPlan};

/// How often it is looked whether the files changed.
const LOOK: Duration = Duration::from_secs(5);

/// The certificate of some blocks.
#[derive(Debug)]
pub struct Certificates {
    tls: ServerTls,
    scheme: Scheme,
    metrics: Arc<Metrics>,
    /// Held for a look at the pointer.
    current: RwLock<Arc<ServerConfig>>,
    /// Held while the files are read.
    seen: Mutex<FileVersion>,
}

/// When each file was written, and how long it is; nothing of one that is not there.
type FileVersion = [Option<(SystemTime, u64)>; 3];

impl Certificates {
    /// Reads the files, and reads them again when they change, as long as somebody has this.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn read(tls: &ServerTls, scheme: Scheme, metrics: &Arc<Metrics>) -> Result<Arc<Self>, TlsError> {
        let seen = seen(tls);
        let read = Arc::new(Self {
            tls: tls.clone(),
            scheme,
            metrics: Arc::clone(metrics),
            current: RwLock::new(Arc::new(server_config(tls, scheme)?)),
            seen: Mutex::new(seen),
        });
        follow(Arc::downgrade(&read));
        Ok(read)
    }

    /// Whether this is what such a block shows.
    #[must_use]
    pub fn are_of(&self, tls: &ServerTls, scheme: Scheme) -> bool {
        self.scheme == scheme && self.tls.is_like(tls)
    }

    /// The configuration of handshakes that begin now.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files if they changed. What cannot be used changes nothing, and is told once.
    pub fn look(&self) {
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = seen(&self.tls);
        if now == *last {
            return;
        }
        *last = now;
        let (origin, file) = (&self.tls.origin, self.tls.certificate.display().to_string());
        match server_config(&self.tls, self.scheme) {
            Ok(config) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                tracing::info!(origin, file, "the certificate was read again");
            }
            Err(error) => {
                self.metrics.certificate_reload_failed.increment(1);
                tracing::error!(origin, %error, "the certificate stays as it is");
            }
        }
    }
}

/// The certificates of a plan: each is read once, and those of the plan before are taken over.
pub(super) struct CertificateLoader<'a> {
    before: Option<&'a ActiveConfig>,
    metrics: &'a Arc<Metrics>,
    found: Vec<Arc<Certificates>>,
}

impl<'a> CertificateLoader<'a> {
    pub(super) const fn new(before: Option<&'a ActiveConfig>, metrics: &'a Arc<Metrics>) -> Self {
        Self {
            before,
            metrics,
            found: Vec::new(),
        }
    }

    /// What such blocks show.
    pub(super) fn get(&mut self, tls: &ServerTls, scheme: Scheme) -> Result<Arc<Certificates>, InvalidPlan> {
        let is_it = |certificates: &&Arc<Certificates>| certificates.are_of(tls, scheme);
        if let Some(found) = self.found.iter().find(is_it) {
            return Ok(Arc::clone(found));
        }
        let tables = self.before.into_iter().flat_map(ActiveConfig::encrypted_tables);
        let before = tables.filter_map(|table| table.certificates.as_ref()).find(is_it);
        let found = match before {
            Some(before) => {
                before.look();
                Arc::clone(before)
            }
            None => Certificates::read(tls, scheme, self.metrics)
                .map_err(|error| InvalidPlan::Tls(tls.origin.clone(), error))?,
        };
        self.found.push(Arc::clone(&found));
        Ok(found)
    }
}

fn follow(certificates: Weak<Certificates>) {
    drop(task::spawn("certificates", async move {
        loop {
            tokio::time::sleep(LOOK).await;
            match certificates.upgrade() {
                Some(certificates) => certificates.look(),
                None => return,
            }
        }
    }));
}

fn seen(tls: &ServerTls) -> FileVersion {
    let look = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        Some((about.modified().ok()?, about.len()))
    };
    let authorities = tls.authorities.as_deref();
    [Some(&*tls.certificate), Some(&*tls.key), authorities].map(|path| path.and_then(look))
}
