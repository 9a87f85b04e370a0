//! What a signer sees of ten thousand nodes, against the goals.

#[path = "../bench/fleet.rs"]
mod simulation;

#[test]
fn a_fleet_never_asks_at_once() {
    let cases = simulation::cases();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let (load, ratio) = (&case.load, case.load.ratio());
        let told = format!(
            "{}: {} requests, {:.1} in a {} on average, {} at most: {ratio:.2}",
            case.what, load.requests, load.mean, case.per, load.peak
        );
        println!("{told}");
        assert!(load.requests > 2000, "too few to tell anything: {told}");
        assert!(case.goal.is_none_or(|goal| ratio <= goal), "{told}");
    }
}
