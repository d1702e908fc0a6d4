
/// Whether the mechanism is removed: `EGRET_SWITCH_OFF` names those that are, separated by commas.
#[must_use]
pub fn is_off(switch: Switch) -> bool {
    use std::sync::LazyLock;
    static OFF: LazyLock<Vec<String>> = LazyLock::new(|| {
        std::env::var("EGRET_SWITCH_OFF")
            .map(|list| list.split(',').map(str::to_owned).collect())
            .unwrap_or_default()
    });
    OFF.iter().any(|name| name == switch.name())
}
