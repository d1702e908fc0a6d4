//! Networks without some of their parts.

use egret_shared::net::IpNet;

/// What is left of a network without the exceptions: the fewest networks that hold exactly that.
///
/// ```
/// # use egret_policies::model::subtract;
/// let left = subtract("10.0.0.0/8".parse().unwrap(), &["10.128.0.0/9".parse().unwrap()]);
/// assert_eq!(left, ["10.0.0.0/9".parse().unwrap()]);
/// ```
#[must_use]
pub fn subtract(net: IpNet, exceptions: &[IpNet]) -> Vec<IpNet> {
    let net = net.trunc();
    if exceptions.iter().any(|exception| exception.contains(&net)) {
        return Vec::new();
    }
    let inside: Vec<IpNet> = exceptions
        .iter()
        .filter(|exception| net.contains(*exception))
        .copied()
        .collect();
    if inside.is_empty() {
        return vec![net];
    }
    halves(&net)
        .into_iter()
        .flat_map(|half| subtract(half, &inside))
        .collect()
}

fn halves(net: &IpNet) -> Vec<IpNet> {
    // A network that holds a smaller one is no single address, so it has two halves.
    let longer = net.prefix_len() + 1;
    net.subnets(longer).map(Iterator::collect).unwrap_or_default()
}
