//! `loadbalance`: the order of addresses in an answer.

mod order;
mod weights;

use super::Unusable;
use crate::config::model::LoadBalance;
use crate::dns::message::{Message, Query, Response, Section, kind, rcode};

pub use weights::{InvalidWeights, Weights};

use order::SectionOrders;

/// Zone transfers keep their order (RFC 5936 §2.2).
const TRANSFERS: [u16; 2] = [251, 252];

/// Reorders addresses.
#[derive(Clone, Debug)]
pub struct Balancer {
    plan: LoadBalance,
    weights: Weights,
}

impl Balancer {
    /// From the plan of a block; `weights` is the content of its file, if there is one.
    #[must_use]
    pub fn new(plan: &LoadBalance, weights: Weights) -> Self {
        Self {
            plan: plan.clone(),
            weights,
        }
    }

    /// The reordered answer. `random(n)` returns a number below n.
    ///
    /// # Errors
    /// When the answer cannot be read. The original can be sent.
    pub fn apply(
        &self,
        mut octets: Vec<u8>,
        query: &Query,
        udp_size: u16,
        mut random: impl FnMut(usize) -> usize,
    ) -> Result<Vec<u8>, Unusable> {
        let message = Message::read(&octets)?;
        let question = message.question();
        if message.rcode() != rcode::NOERROR || TRANSFERS.contains(&question.kind) {
            return Ok(octets);
        }
        let orders = SectionOrders::read(&message, |records, section| {
            self.arrange(records, section, &message, &mut random);
        })?;
        if orders.are_the_same() {
            return Ok(octets);
        }
        if orders.swap_in_place(&mut octets) {
            return Ok(octets);
        }
        let mut response = Response::read(&Message::read(&octets)?)?;
        orders.apply(&mut response.sections);
        Ok(response.write(query, udp_size)?)
    }

    fn arrange(
        &self,
        records: &mut Vec<order::IndexedRecord>,
        section: Section,
        message: &Message<'_>,
        random: &mut impl FnMut(usize) -> usize,
    ) {
        match &self.plan.weights {
            None => order::shuffle(records, random),
            Some(_file) => {
                let is_for = matches!(message.question().kind, kind::A | kind::AAAA | kind::SRV);
                if is_for && section != Section::Authority {
                    self.put_one_first(records, message, random);
                }
            }
        }
        if !self.plan.prefer.is_empty() && section != Section::Authority {
            order::prefer(records, &self.plan.prefer);
        }
    }

    /// Moves one address to the front, chosen by weight; the others keep their order.
    fn put_one_first(
        &self,
        records: &mut Vec<order::IndexedRecord>,
        message: &Message<'_>,
        random: &mut impl FnMut(usize) -> usize,
    ) {
        let (before, mut addresses, after) = order::part(records);
        if addresses.is_empty() {
            return;
        }
        let weight = |item: &order::IndexedRecord| {
            let owner = item.record.owner(message.octets()).ok();
            owner.map_or(1, |owner| self.weights.of(&owner, item.address))
        };
        let weights: Vec<usize> = addresses.iter().map(weight).collect();
        let mut left = random(weights.iter().sum());
        let first = weights.iter().position(|weight| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        addresses.swap(0, first.unwrap_or(0));
        *records = [before, addresses, after].concat();
    }
}
