//! `loadbalance [round_robin | weighted FILE] { reload DURATION; prefer CIDR… }`.

use std::path::PathBuf;
use std::time::Duration;

use egret_shared::net::IpNet;

use crate::config::model::{LoadBalance, WeightFile};

use super::super::syntax::{Directive, Line, Token};
use super::BlockBuilder;
use crate::config::corefile::position::Error;

const USAGE: &str = "loadbalance [round_robin | weighted FILE { reload DURATION }] { prefer CIDR... }";

pub(super) fn read(directive: &Directive, block_builder: &mut BlockBuilder) -> Result<(), Error> {
    let said = block_builder.block.loadbalance.take();
    let weights = weights(&directive.head)?;
    // A repeated directive adds networks; after weights it starts anew, as in CoreDNS.
    let prefer = said
        .filter(|_| weights.is_none())
        .map(|said| said.prefer)
        .unwrap_or_default();
    let mut balance = LoadBalance { weights, prefer };
    for line in directive.options() {
        option(line, &mut balance)?;
    }
    block_builder.block.loadbalance = Some(balance);
    Ok(())
}

fn weights(line: &Line) -> Result<Option<WeightFile>, Error> {
    match line.between(0, 2, USAGE)? {
        [] => Ok(None),
        [policy] if policy.text == "round_robin" => Ok(None),
        [policy, file] if policy.text == "weighted" => Ok(Some(WeightFile {
            file: PathBuf::from(&file.text),
            reload: Duration::from_secs(30),
        })),
        [policy, ..] => Err(policy.error(format!("loadbalance: {:?}", policy.text), USAGE)),
    }
}

fn option(line: &Line, balance: &mut LoadBalance) -> Result<(), Error> {
    match (line.name.text.as_str(), &mut balance.weights) {
        ("prefer", _) => {
            let networks: Result<Vec<IpNet>, Error> = line.args.iter().map(network).collect();
            balance.prefer.extend(networks?);
        }
        ("reload", Some(weights)) => weights.reload = line.one("reload DURATION")?.span("reload")?,
        ("reload", None) => {
            return Err(line.name.error(
                "loadbalance: there is no file to be read again",
                "reload with weighted FILE",
            ));
        }
        _other => return Err(line.unknown("loadbalance")),
    }
    Ok(())
}

fn network(token: &Token) -> Result<IpNet, Error> {
    let network = token.text.parse::<IpNet>();
    network.map(|network| network.trunc()).map_err(|_not_a_network| {
        token.error(
            format!("prefer: {:?}", token.text),
            "a network, as in \"10.0.0.0/8\"",
        )
    })
}
