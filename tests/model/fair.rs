//! The fair schedule, which shows that every rotation ends.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::cluster::{Cluster, Event};
use crate::decisions::AdminCommand;
use crate::state::{Budget, Life, State};

/// Rounds of the fair schedule after which a rotation counts as stuck. A rotation with undo has five phases.
const MAX_FAIR_ROUNDS: usize = 40;
/// Actions of a node in one round of the fair schedule.
const ACTIONS_IN_ROUND: usize = 12;

impl Cluster {
    /// Runs the cluster in a fair schedule without further faults and without commands other than the end of a pause.
    /// Returns whether the rotation ends, every registered node serves and every counted one has recorded the end.
    pub(crate) fn ends(&self, state: &State) -> bool {
        let mut visited = Vec::new();
        let mut state = state.clone();
        state.budget = Budget::default();
        for _ in 0..MAX_FAIR_ROUNDS {
            let mut hasher = DefaultHasher::new();
            state.hash(&mut hasher);
            let hash = hasher.finish();
            if self.is_ended(&state) || self.ending.lock().unwrap().contains(&hash) {
                self.ending.lock().unwrap().extend(visited);
                return true;
            }
            visited.push(hash);
            state = self.fair_round(state);
        }
        false
    }

    fn is_ended(&self, state: &State) -> bool {
        let mut registered = state.nodes.iter().filter(|node| node.is_registered);
        let end = state
            .document
            .map(|document| (document.number, document.phase));
        let has_ended = state
            .document
            .is_none_or(|document| document.phase.is_end());
        has_ended
            && registered.all(|node| {
                let is_proven = node.begun == end && node.disk == node.loaded;
                node.life == Life::Serving
                    && (is_proven || node.is_excluded)
                    && node.published == Some(node.own())
            })
    }

    fn fair_round(&self, mut state: State) -> State {
        let mut take = |event: Event| {
            if let Some(next) = self.step(&state, event) {
                state = next;
            }
        };
        take(Event::Command(AdminCommand::Resume));
        take(Event::Expire);
        for index in 0..self.members + self.joiners {
            take(Event::PowerOn(index));
            take(Event::Register(index));
            take(Event::Read(index));
            for _ in 0..ACTIONS_IN_ROUND {
                take(Event::Act(index));
            }
            take(Event::Publish(index));
        }
        for leader in 0..self.leaders {
            take(Event::List(leader));
            take(Event::Decide(leader));
            take(Event::Write(leader));
        }
        state.canonical()
    }
}
