//! The other end against names: which record of the pod makes an address one of them, or which is missing.

use std::net::IpAddr;
use std::time::Duration;

use egret_shared::name::{DnsName, NamePattern};
use egret_shared::time::Timestamp;

use crate::output::first_of;

use super::report::MatchResult;
use super::viewpoint::Viewpoint;

/// The names that a sentence shows.
const SHOWN: usize = 3;

/// Compares an address with what the pod was told for the names of a rule.
pub(super) fn compare_names(view: &Viewpoint<'_>, patterns: &[NamePattern]) -> MatchResult {
    let wanted = list(patterns);
    let is_wanted = |name: &DnsName| patterns.iter().any(|pattern| pattern.matches(name));
    let mut of_address = Vec::new();
    let mut of_names = Vec::new();
    for (name, addresses) in view.told() {
        match (addresses.get(&view.address), is_wanted(name)) {
            (Some(_), true) if view.asked.judge.is_protected(&view.subject.pod.key, view.address) => {
                return MatchResult::failed(is_protected(view.address, name));
            }
            (Some(until), true) if *until > view.now => {
                return MatchResult::passed(is(view.address, name, *until));
            }
            (Some(until), true) => return MatchResult::failed(was(view, name, *until)),
            (Some(_), false) => of_address.push(name.to_string()),
            (None, true) => of_names.push(name.to_string()),
            (None, false) => {}
        }
    }
    if let Some(because) = leads_on(view, is_wanted) {
        return MatchResult::failed(because);
    }
    let address = view.address;
    if !of_names.is_empty() {
        return MatchResult::failed(format!(
            "this pod was told other addresses for {}, not {address}",
            first_of(&of_names, SHOWN)
        ));
    }
    let other = if of_address.is_empty() {
        String::new()
    } else {
        format!(" ({address} is {} for it)", first_of(&of_address, SHOWN))
    };
    MatchResult::failed(format!("no answer for {wanted} was given to this pod{other}"))
}

/// The names of a rule.
pub(super) fn list(patterns: &[NamePattern]) -> String {
    let patterns: Vec<String> = patterns.iter().map(NamePattern::to_string).collect();
    patterns.join(" or ")
}

/// Until when an address counts for a name.
pub(super) fn is(address: IpAddr, name: &DnsName, until: Timestamp) -> String {
    format!(
        "{address} is {name} for this pod until {} s after it was told",
        seconds(until)
    )
}

/// Why a name does not open what is behind the address of a Service that the pod was told.
fn leads_on(view: &Viewpoint<'_>, is_wanted: impl Fn(&DnsName) -> bool) -> Option<String> {
    let told = view.told_address.filter(|told| *told != view.address)?;
    let (name, _) = view
        .told()
        .find(|(name, addresses)| is_wanted(name) && addresses.contains_key(&told))?;
    let protected = match view.asked.judge.is_protected(&view.subject.pod.key, told) {
        true => ", and no name opens it: it is protected",
        false => "",
    };
    Some(format!(
        "{told} is {name} for this pod, a Service's address{protected}; the connection goes on to {}, where no name counts",
        view.peer_name()
    ))
}

fn is_protected(address: IpAddr, name: &DnsName) -> String {
    format!("{address} is {name} for this pod, and no name opens it: it is protected")
}

fn was(view: &Viewpoint<'_>, name: &DnsName, until: Timestamp) -> String {
    format!(
        "{} was {name} for this pod until {} s after it was told, and now it is {} s",
        view.address,
        seconds(until),
        seconds(view.now)
    )
}

fn seconds(moment: Timestamp) -> f64 {
    let span: Duration = moment.since(Timestamp::from_millis(0));
    span.as_secs_f64()
}
