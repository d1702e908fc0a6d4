//! Every story, as it is.

#[path = "scenarios/mod.rs"]
#[macro_use]
mod scenarios;

use scenarios::SCENARIOS;

macro_rules! tests {
    ($($chapter:ident: $story:ident without $switch:ident;)*) => {
        $(
            #[test]
            fn $story() -> Result<(), Box<dyn std::error::Error>> {
                let scenario = SCENARIOS.iter().find(|scenario| scenario.name == stringify!($story));
                scenario.expect("the list has all of them").tell()
            }
        )*
    };
}

with_every_scenario!(tests);

#[test]
fn every_switch_removes_the_mechanism_of_some_scenario() {
    use scenarios::switch::Switch;
    let used = |switch: &&Switch| SCENARIOS.iter().any(|scenario| scenario.switch == **switch);
    let idle: Vec<_> = Switch::ALL.iter().filter(|switch| !used(switch)).collect();
    assert!(idle.is_empty(), "no scenario is about {idle:?}");
}
