//! How the daemon ends: by a signal, or after a takeover.

use std::sync::Arc;
use std::time::Duration;

use egret_dnsd::enforcement::gated::ResponseGate;
use egret_dnsd::listener::{Listeners, Service};
use egret_dnsd::takeover::TakeoverEvent;
use egret_shared::rt::shutdown::{SignalRequest, Signals};

use super::Daemon;
use super::takeover::hand_over_connections;

/// How long pending answers may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the enforcer may take after that to receive the observations.
const OBSERVATION_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a new process that has the sockets may take after that to take over.
const TAKEOVER_GRACE: Duration = Duration::from_secs(5);
/// How long open connections are answered after a takeover, if they cannot be handed over.
const CONNECTION_GRACE: Duration = Duration::from_secs(20);
/// How long a connection that always has queries under way is read after a takeover. Then it is read no more until they are
/// answered, and handed over.
const BUSY_GRACE: Duration = Duration::from_secs(1);
/// How often a process that waits to be stopped looks for the new one. Pods are left to the fallback in between.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Why a daemon has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It was asked to, or another one is there.
    Stopped,
    /// The process that took over is gone, and this one was not asked to end: the program is to start again.
    Again,
}

impl Daemon {
    /// Goes on answering for as long as `health` says (`lameduck`), so that load balancers notice the end first. A second signal
    /// cuts it short. Returns whether a new process has taken over meanwhile.
    pub(super) async fn lameduck(&mut self, signals: &mut Signals) -> anyhow::Result<bool> {
        let serving = self.service.resolver.serving();
        let lameduck = serving
            .config
            .plan
            .health
            .iter()
            .map(|health| health.lameduck)
            .max();
        let Some(lameduck) = lameduck.filter(|span| !span.is_zero()) else {
            return Ok(false);
        };
        tracing::info!(?lameduck, "going into lameduck mode");
        let mut ended = std::pin::pin!(tokio::time::sleep(lameduck));
        loop {
            tokio::select! {
                () = &mut ended => return Ok(false),
                _request = signals.next() => return Ok(false),
                event = self.host.takeover_event() => if self.handle_takeover(event).await? {
                    return Ok(true);
                },
            }
        }
    }

    /// Answers the pending queries, then removes interface and rules unless a new process uses them.
    pub(super) async fn end(mut self) {
        self.kernel_answers.suspend();
        self.host.stop_heartbeat();
        stop_reading(&self.service, &mut self.listeners).await;
        let (service, gate) = (self.service.clone(), Arc::clone(&self.gate));
        let mut finishing = std::pin::pin!(drain(&service, &gate));
        let mut is_taken_over = tokio::select! {
            () = &mut finishing => false,
            is_taken_over = self.finish_takeover() => {
                finishing.await;
                is_taken_over
            }
        };
        // A new process that has the sockets is about to answer the queries in them.
        if self.is_takeover_open && !is_taken_over {
            let finished = tokio::time::timeout(TAKEOVER_GRACE, self.finish_takeover()).await;
            is_taken_over = finished.unwrap_or(false);
        }
        if is_taken_over || self.host.is_taken_over() {
            self.host.hand_over();
            self.host.end();
        } else {
            self.host.tear_down();
        }
    }

    /// Ends after a takeover: answers what it has read. Under a supervisor it then waits for SIGTERM: if it exited by itself,
    /// it would be restarted, and take over from the new process. If that one is gone first, this one is to answer again.
    pub(super) async fn end_after_takeover(
        mut self,
        mut signals: Signals,
        is_stop_requested: bool,
    ) -> anyhow::Result<End> {
        tracing::info!("a new process answers; open connections are answered until they are idle");
        self.kernel_answers.suspend();
        self.listeners.pause().await;
        self.host.hand_over();
        self.listeners.release();
        self.admin.close();
        self.service.under_way.close();
        let is_stop_requested = is_stop_requested || self.serve_connections(&mut signals).await;
        self.service.handover.hurry();
        stop_reading(&self.service, &mut self.listeners).await;
        drain(&self.service, &self.gate).await;
        self.service.handover.end();
        self.link.abort();
        if !is_stop_requested && self.host.is_supervised() {
            tracing::info!("waiting to be stopped");
            if !self.is_stopped_before_new_process(&mut signals).await {
                tracing::warn!("the new process is gone; this one starts again");
                self.host.leave();
                return Ok(End::Again);
            }
        }
        self.host.end();
        Ok(End::Stopped)
    }

    async fn is_stopped_before_new_process(&self, signals: &mut Signals) -> bool {
        loop {
            tokio::select! {
                request = signals.next() => if request == SignalRequest::Stop {
                    return true;
                },
                () = tokio::time::sleep(LOOK_INTERVAL) => if !self.host.is_served() {
                    return false;
                },
            }
        }
    }
}

impl Daemon {
    /// Serves open connections until they are handed over or idle. Those that still come from the process before this one
    /// go on to the new one. Returns whether a signal asks to stop.
    async fn serve_connections(&mut self, signals: &mut Signals) -> bool {
        let service = &self.service;
        let idle = async {
            while let Some(connection) = self.arrivals.next_or_end().await {
                service.handover.depart(connection).await;
            }
            service.under_way.wait().await;
        };
        let busy = async {
            tokio::time::sleep(BUSY_GRACE).await;
            service.handover.hurry();
            std::future::pending::<()>().await;
        };
        let host = &mut self.host;
        // Where this process has left before the new one said that it serves.
        let late = async {
            loop {
                if let TakeoverEvent::Leave(connections) = host.takeover_event().await {
                    hand_over_connections(service, connections);
                }
            }
        };
        tokio::select! {
            _waited = tokio::time::timeout(CONNECTION_GRACE, idle) => false,
            () = busy => false,
            () = late => false,
            request = signals.next() => request == SignalRequest::Stop,
        }
    }
}

/// Reads no more queries.
async fn stop_reading(service: &Service, listeners: &mut Listeners) {
    tracing::info!("stopping; what is under way is answered");
    service.stop.cancel();
    service.under_way.close();
    listeners.all_ended().await;
}

/// Waits for the pending answers, then for the enforcer to receive their observations.
async fn drain(service: &Service, gate: &ResponseGate) {
    let answered = tokio::time::timeout(DRAIN_TIMEOUT, service.under_way.wait()).await;
    let sent = tokio::time::timeout(OBSERVATION_TIMEOUT, gate.tell_rest()).await;
    if answered.is_err() {
        tracing::warn!(
            left = service.under_way.len(),
            "stopped before all queries were answered"
        );
    } else if sent.is_err() {
        tracing::warn!("stopped before the enforcer received all observations");
    } else {
        tracing::info!("stopped");
    }
}
