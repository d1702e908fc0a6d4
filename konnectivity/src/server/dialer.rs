//! How a connection of the API server is made, by whatever its client speaks: it is judged, dialled, counted and recorded.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use egret_policies::model::api_server::{Selection, TunnelLimits};
use egret_shared::rt::{clock, task};
use egret_shared::time::Timestamp;
use metrics::{counter, histogram};
use tokio::task::JoinHandle;

use super::audit::{AuditLog, Closing, Subject};
use super::client_hello::NoServerName;
use super::first_octets::{FirstOctets, HELLO_WITHIN, SeenName};
use super::gate::{Admitted, Early, Gate, Named};
use super::hub::{Hub, Tunnel};
use super::open_tunnels::{Permit, Revoked};
use crate::core::{Read, Refusal, Room};
use crate::proto::MAX_DATA;
use crate::relay::{Channel, Signals};

/// A connection that is made: the tunnel, and the agent's number of it.
pub(super) type Dial<'a> =
    Pin<Box<dyn Future<Output = Result<(Box<AuditedTunnel>, i64), Refusal>> + Send + 'a>>;

/// What a front end asks for connections.
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    pub(super) hub: Arc<Hub>,
    pub(super) gate: Arc<Gate>,
    pub(super) audit: AuditLog,
    pub(super) selection: Selection,
    pub(super) timeout: Option<Duration>,
}

/// A connection that was made. Dropped, it is closed and recorded.
#[derive(Debug)]
pub(super) struct AuditedTunnel {
    tunnel: Tunnel,
    usage: Arc<Usage>,
    /// Of the duration that its rule allows.
    timer: OnceLock<JoinHandle<()>>,
    first: Arc<FirstOctets>,
    /// Of the first octets, where they wait.
    patience: Option<JoinHandle<()>>,
    named: OnceLock<Named>,
    gate: Arc<Gate>,
    audit: AuditLog,
    subject: Subject,
    opened: Timestamp,
    permit: Option<Permit>,
}

/// What a connection has used, and why it ended.
#[derive(Debug, Default)]
struct Usage {
    sent: AtomicU64,
    received: AtomicU64,
    /// Of the rule that allowed it first.
    limits: OnceLock<TunnelLimits>,
    /// Set, nothing is read or written any more.
    over: OnceLock<&'static str>,
    cause: OnceLock<String>,
}

impl Dialer {
    /// The connection, and the agent's number of it.
    ///
    /// Boxed, both: a task that serves a connection is as large as all that it ever holds, for as long as the connection is there.
    pub(super) fn dial<'a>(&'a self, address: String, client: &'a str) -> Dial<'a> {
        Box::pin(self.dial_judged(address, client))
    }

    async fn dial_judged(&self, address: String, client: &str) -> Result<(Box<AuditedTunnel>, i64), Refusal> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut subject = Subject {
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            selection: self.selection.word(),
            client: client.to_owned(),
            destination: address.clone(),
            judgement: super::gate::Judgement::default(),
            agent: None,
            server_name: None,
        };
        let admitted = match self.gate.admit(self.selection, &address).await {
            Ok(admitted) => admitted,
            Err((refusal, judgement)) => {
                let result = match &refusal {
                    Refusal::Denied(_) => "denied",
                    Refusal::NoAgent | Refusal::AgentGone | Refusal::Target(_) => "failed",
                };
                tracing::info!(address, %refusal, "a connection is refused");
                subject.judgement = judgement;
                self.audit.refused(&subject, result, &refusal.to_string());
                return Err(refusal);
            }
        };
        subject.judgement = admitted.judgement.clone();
        let begun = clock::now();
        let dialled = self.dial_any(&address, &admitted).await;
        // Other rules may be in force by now.
        let dialled = dialled.and_then(|dialled| match admitted.revoked() {
            Some(revoked) => Err(Refusal::Denied(revoked.text.clone())),
            None => Ok(dialled),
        });
        match dialled {
            Ok((tunnel, connection)) => {
                let opened = clock::now();
                subject.agent = tunnel.agent();
                self.audit.connected(&subject, opened.since(begun));
                let tunnel = self.audited(tunnel, admitted, subject, opened);
                Ok((tunnel, connection))
            }
            Err(refusal) => {
                let result = if let Some(revoked) = admitted.revoked() {
                    subject.judgement.rule.clone_from(&revoked.rule);
                    "denied"
                } else {
                    "failed"
                };
                self.audit.refused(&subject, result, &refusal.to_string());
                Err(refusal)
            }
        }
    }

    fn audited(
        &self,
        tunnel: Tunnel,
        admitted: Admitted,
        subject: Subject,
        opened: Timestamp,
    ) -> Box<AuditedTunnel> {
        let waits = matches!(admitted.verdict, Early::ByServerName);
        let first = Arc::new(FirstOctets::new(waits));
        let patience = waits.then(|| {
            let (first, signals) = (Arc::clone(&first), tunnel.shared_signals());
            task::spawn_brief(async move {
                tokio::time::sleep(HELLO_WITHIN).await;
                first.expire();
                signals.wake();
            })
        });
        let audited = Box::new(AuditedTunnel {
            tunnel,
            usage: Arc::default(),
            timer: OnceLock::new(),
            first,
            patience,
            named: OnceLock::new(),
            gate: Arc::clone(&self.gate),
            audit: self.audit.clone(),
            subject,
            opened,
            permit: admitted.permit,
        });
        if let Early::Allowed(limits) = admitted.verdict {
            audited.limit(limits);
        }
        audited
    }

    /// The first address of a name that takes the connection.
    async fn dial_any(&self, address: &str, admitted: &Admitted) -> Result<(Tunnel, i64), Refusal> {
        let mut last = Refusal::NoAgent;
        for (index, target) in admitted.targets.iter().enumerate() {
            match self.dial_one(address, target).await {
                Err(refusal @ Refusal::Target(_)) => last = refusal,
                Ok((tunnel, connection)) => {
                    admitted.connected(index, &tunnel);
                    return Ok((tunnel, connection));
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(last)
    }

    async fn dial_one(&self, address: &str, target: &str) -> Result<(Tunnel, i64), Refusal> {
        let begun = clock::now();
        let tunnel = self.hub.dial(address.to_owned(), target.to_owned());
        let dialled = match self.timeout {
            None => tunnel.connected().await,
            Some(timeout) => match tokio::time::timeout(timeout, tunnel.connected()).await {
                Ok(dialled) => dialled,
                Err(_elapsed) => {
                    count_failure("backend_dial_timeout");
                    let error = format!("dial tcp {target}: i/o timeout: no answer of the agent");
                    return Err(Refusal::Target(error));
                }
            },
        };
        match dialled {
            Ok(connection) => {
                let took = clock::now().since(begun).as_secs_f64();
                histogram!("konnectivity_network_proxy_server_dial_duration_seconds").record(took);
                Ok((tunnel, connection))
            }
            Err(refusal) => {
                tracing::debug!(address, %refusal, "a dial failed");
                count_failure(match &refusal {
                    Refusal::NoAgent => "no_agent",
                    Refusal::AgentGone => "backend_close",
                    Refusal::Denied(_) | Refusal::Target(_) => "error_response",
                });
                Err(refusal)
            }
        }
    }
}

impl Admitted {
    /// From now on a change of the rules is about this address, and cuts the tunnel.
    fn connected(&self, target: usize, tunnel: &Tunnel) {
        let Some(permit) = &self.permit else { return };
        if let Some(address) = self.addresses.get(target) {
            permit.connected_to(*address);
        }
        permit.revocation().cut_by(tunnel.cutter());
    }

    fn revoked(&self) -> Option<&Revoked> {
        self.permit.as_ref()?.revocation().revoked()
    }
}

fn count_failure(reason: &'static str) {
    counter!("konnectivity_network_proxy_server_dial_failure_count", "reason" => reason).increment(1);
}

impl AuditedTunnel {
    /// The limits of the rule that allows it; those of the first count.
    fn limit(&self, limits: TunnelLimits) {
        self.usage.limits.get_or_init(|| limits);
        let Some(duration) = limits.duration else { return };
        self.timer.get_or_init(|| {
            let (usage, signals) = (Arc::clone(&self.usage), self.tunnel.shared_signals());
            task::spawn_brief(async move {
                tokio::time::sleep(duration).await;
                usage.end("egress ended by policy: its time is over");
                signals.wake();
            })
        });
    }

    /// The server name is known, or never will be: what waited passes, or the connection ends.
    fn name_seen(&self, name: SeenName, waited: Bytes) {
        let named = match &self.permit {
            Some(permit) => self.gate.name_seen(permit, name),
            None => Named {
                server_name: name,
                judged: None,
            },
        };
        if self.revoked().is_none() {
            if let Some((_, limits)) = &named.judged {
                self.limit(*limits);
            }
            self.pass(waited);
        }
        self.named.get_or_init(|| named);
        self.tunnel.signals().wake();
    }

    fn pass(&self, data: Bytes) {
        if !data.is_empty() && self.revoked().is_none() {
            self.usage.add(&self.usage.sent, data.len());
            self.tunnel.write(data);
        }
    }

    fn revoked(&self) -> Option<&Revoked> {
        self.permit.as_ref()?.revocation().revoked()
    }

    /// Waits until what was written is sent, and the close.
    pub(super) async fn finished(&self) {
        self.tunnel.finished().await;
    }

    /// Says why it ends; the first to say so is right.
    pub(super) fn ended(&self, cause: &str) {
        self.usage.cause.get_or_init(|| cause.to_owned());
    }
}

impl Usage {
    fn end(&self, text: &'static str) {
        self.over.get_or_init(|| text);
        self.cause.get_or_init(|| text.to_owned());
    }

    fn add(&self, counter: &AtomicU64, octets: usize) {
        counter.fetch_add(octets as u64, Ordering::Relaxed);
        let total = self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed);
        let most = self.limits.get().and_then(|limits| limits.octets);
        if most.is_some_and(|most| total > most) {
            self.end("egress ended by policy: its octets are used up");
        }
    }
}

impl Channel for AuditedTunnel {
    fn read(&self) -> Read {
        if let Some(revoked) = self.revoked() {
            return Read::End(revoked.text.clone());
        }
        if let Some(text) = self.usage.over.get() {
            return Read::End((*text).to_owned());
        }
        if self.first.is_waiting() {
            if !self.first.is_late() {
                return Read::Empty;
            }
            self.first
                .give_up(NoServerName::Late, |name, waited| self.name_seen(name, waited));
            return self.read();
        }
        let read = self.tunnel.read();
        match &read {
            Read::Data(data) => self.usage.add(&self.usage.received, data.len()),
            Read::End(error) if error.is_empty() => self.ended("closed by the destination"),
            Read::End(error) => self.ended(error),
            Read::Empty => {}
        }
        read
    }

    fn room(&self) -> Room {
        if self.revoked().is_some() || self.usage.over.get().is_some() {
            return Room::Closed;
        }
        if self.first.is_waiting() {
            return Room::Octets(MAX_DATA);
        }
        self.tunnel.room()
    }

    fn write(&self, data: Bytes) {
        let passes = self.first.push(data, |name, waited| self.name_seen(name, waited));
        if let Some(data) = passes {
            self.pass(data);
        }
    }

    fn finish(&self) {
        self.first
            .give_up(NoServerName::Cut, |name, waited| self.name_seen(name, waited));
        self.ended("closed by the client");
        self.tunnel.finish();
    }

    fn signals(&self) -> &Signals {
        self.tunnel.signals()
    }
}

impl Drop for AuditedTunnel {
    fn drop(&mut self) {
        for timer in self.timer.get().into_iter().chain(&self.patience) {
            timer.abort();
        }
        if let Some(Named { server_name, judged }) = self.named.take() {
            self.subject.server_name = Some(server_name);
            if let Some((judgement, _)) = judged {
                self.subject.judgement = judgement;
            }
        }
        let revoked = self.revoked().cloned();
        let cause = self.usage.cause.get().cloned();
        let closing = Closing {
            cause: match &revoked {
                Some(revoked) => revoked.text.clone(),
                None => cause.unwrap_or_else(|| "the client is gone".to_owned()),
            },
            ended_by: revoked.and_then(|revoked| revoked.rule),
            sent: self.usage.sent.load(Ordering::Relaxed),
            received: self.usage.received.load(Ordering::Relaxed),
            duration: clock::now().since(self.opened),
        };
        self.audit.closed(&self.subject, &closing);
    }
}
