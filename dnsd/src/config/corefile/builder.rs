//! Builds the plan: blocks, and what they say about the whole process.

use crate::config::model::{Block as PlanBlock, Health, Plan, Reload, Scheme};

use super::directive::{self, BlockBuilder};
use super::keys::{self, Key};
use super::syntax::{Block, Directive};
use crate::config::corefile::position::{Diagnostics, Error, Position};

/// The plan so far.
#[derive(Default)]
pub(super) struct PlanBuilder {
    blocks: Vec<PlanBlock>,
    served: Vec<ServedZone>,
    reload: Option<Reload>,
    health: Vec<Health>,
    prometheus: Vec<std::net::SocketAddr>,
}

/// A served zone, to find duplicates.
struct ServedZone {
    key: Key,
    block: PlanBlock,
}

impl PlanBuilder {
    pub(super) fn add(&mut self, block: &Block, default_port: u16, diagnostics: &mut Diagnostics) {
        let keys = keys::read(&block.keys, default_port, diagnostics);
        let Some(first) = keys.first() else {
            return;
        };
        let mut block_builder = BlockBuilder::new(PlanBlock {
            origin: first.position.origin(),
            scheme: first.scheme,
            port: first.port,
            ..PlanBlock::default()
        });
        for directive in &block.directives {
            let read = directive::read(directive, &mut block_builder, diagnostics);
            diagnostics.take(read);
        }
        let is_tls = |directive: &Directive| directive.head.name.text == "tls";
        if !block.directives.iter().any(is_tls) || block_builder.block.tls.is_some() {
            check_tls(&keys, &block_builder.block, diagnostics);
        }
        self.note_doubles(&keys, &block_builder.block, diagnostics);
        self.reload = self.reload_of(&block_builder, first, diagnostics);
        self.health.extend(block_builder.health);
        if let Some(address) = block_builder.prometheus
            && !self.prometheus.contains(&address)
        {
            self.prometheus.push(address);
        }
        self.blocks.extend(split(block_builder.block, &keys, diagnostics));
    }

    pub(super) fn finish(self, diagnostics: &mut Diagnostics) -> Option<Plan> {
        if self.blocks.is_empty() || !diagnostics.errors.is_empty() {
            return None;
        }
        Some(Plan {
            blocks: self.blocks,
            reload: self.reload,
            health: self.health,
            prometheus: self.prometheus,
        })
    }

    /// There is one file, so the last `reload` counts for all blocks.
    fn reload_of(
        &self,
        block_builder: &BlockBuilder,
        key: &Key,
        diagnostics: &mut Diagnostics,
    ) -> Option<Reload> {
        let said = block_builder.reload.or(self.reload);
        if self.reload.is_some() && said != self.reload {
            let text = "this block's reload counts, not that of a block above: there is one file";
            diagnostics.warn(&key.position, text);
        }
        said
    }

    /// Reports a zone that is served twice on a port and address; a block without `bind` is on every address.
    fn note_doubles(&mut self, keys: &[Key], block: &PlanBlock, diagnostics: &mut Diagnostics) {
        for key in keys {
            let other = self.served.iter().find(|served| served.overlaps(key, block));
            if let Some(other) = other {
                diagnostics.errors.push(double(key, &other.key.position));
            }
            let other = self
                .served
                .iter()
                .find(|served| served.contradicts_tls(key, block));
            if let Some(other) = other {
                diagnostics
                    .errors
                    .push(other_certificate(key, &other.key.position));
            }
            self.served.push(ServedZone {
                key: key.clone(),
                block: block.clone(),
            });
        }
    }
}

impl ServedZone {
    fn overlaps(&self, key: &Key, block: &PlanBlock) -> bool {
        self.key.zone == key.zone && self.shares_socket(key, block)
    }

    fn shares_socket(&self, key: &Key, block: &PlanBlock) -> bool {
        (self.key.scheme, self.key.port) == (key.scheme, key.port) && self.block.shares_address(block)
    }

    fn contradicts_tls(&self, key: &Key, block: &PlanBlock) -> bool {
        let tls = self.block.tls.as_ref().zip(block.tls.as_ref());
        key.scheme.is_encrypted()
            && tls.is_some_and(|(own, other)| !own.is_like(other))
            && self.shares_socket(key, block)
    }
}

/// A key with encryption needs a certificate, and a certificate a key with encryption. CoreDNS would serve the former
/// without encryption, and ignore the latter.
fn check_tls(keys: &[Key], block: &PlanBlock, diagnostics: &mut Diagnostics) {
    let encrypted = keys.iter().find(|key| key.scheme.is_encrypted());
    match (encrypted, &block.tls) {
        (Some(key), None) => diagnostics.errors.push(Error {
            position: key.position.clone(),
            wrong: format!("{}://: this block has no certificate", key.scheme.name()),
            accepted: "tls CERT KEY [CA] in the block".to_owned(),
        }),
        (None, Some(tls)) => {
            let text = format!(
                "tls at {} is not used: no key of this block begins with tls://, https:// or quic:// (for upstreams \
                 forward has an option tls)",
                tls.origin
            );
            diagnostics.warn(&keys[0].position, text);
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
}

fn other_certificate(key: &Key, other: &Position) -> Error {
    Error {
        position: key.position.clone(),
        wrong: format!(
            "{}://: the block at {other} has another tls, on the same port {}",
            key.scheme.name(),
            key.port
        ),
        accepted: "the same tls in all blocks of a port and an address".to_owned(),
    }
}

fn double(key: &Key, other: &Position) -> Error {
    Error {
        position: key.position.clone(),
        wrong: format!(
            "the zone {} is served on port {} by the block at {other}, too",
            key.zone, key.port
        ),
        accepted: "each zone once for a port and an address".to_owned(),
    }
}

/// A plan's block has one scheme and port; a block whose keys have several is split.
fn split(block: PlanBlock, keys: &[Key], diagnostics: &mut Diagnostics) -> Vec<PlanBlock> {
    let mut sockets: Vec<(Scheme, u16)> = Vec::new();
    for key in keys {
        if !sockets.contains(&(key.scheme, key.port)) {
            if !sockets.is_empty() {
                diagnostics.warn(
                    &key.position,
                    "another port: it has a cache and limits of its own",
                );
            }
            sockets.push((key.scheme, key.port));
        }
    }
    let of_socket = |(scheme, port): (Scheme, u16)| PlanBlock {
        scheme,
        port,
        tls: block.tls.clone().filter(|_| scheme.is_encrypted()),
        zones: keys
            .iter()
            .filter(|key| (key.scheme, key.port) == (scheme, port))
            .map(|key| key.zone)
            .collect(),
        ..block.clone()
    };
    sockets.into_iter().map(of_socket).collect()
}
