//! What the modules share for their metrics. Each module describes and registers its own, at 0, when the daemon starts.

use metrics::{Unit, describe_counter, describe_gauge};

/// The name of a metric and its help text.
pub(crate) type Description = (&'static str, &'static str);

pub(crate) fn describe_counters(descriptions: &[Description]) {
    for (name, help) in descriptions {
        describe_counter!(*name, Unit::Count, *help);
    }
}

pub(crate) fn describe_gauges(descriptions: &[Description]) {
    for (name, help) in descriptions {
        describe_gauge!(*name, Unit::Count, *help);
    }
}

/// A count as the value of a gauge.
#[allow(
    clippy::cast_precision_loss,
    reason = "gauges are floating point, and no count here is near 2^52"
)]
pub(crate) const fn as_gauge(number: usize) -> f64 {
    number as f64
}
