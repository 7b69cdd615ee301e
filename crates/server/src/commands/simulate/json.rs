//! What was played as one JSON object, schema 1. Loads, scores and points are percent of one shard.

use pelton_balance::{
    HotUnit, Move,
    simulate::{FluidRound, RoundRow, Run},
};
use serde_json::{Value, json};

use super::Played;

pub(super) fn json(played: &Played) -> String {
    let scenario = &played.scenario;
    let mut object = json!({
        "schema": 1,
        "scenario": {
            "name": scenario.name,
            "title": scenario.title,
            "shards": scenario.shards,
            "foreign": scenario.foreign,
            "rounds": scenario.rounds,
            "report_lag": scenario.report_lag,
            "excess_points": scenario.excess(),
        },
        "runs": played.runs.iter().map(run).collect::<Value>(),
    });
    if let Some(worked) = &played.worked {
        object["worked_example"] = worked.half_gap.iter().map(fluid).collect();
    }
    format!("{object}\n")
}

fn run((strategy, run): &(String, Run)) -> Value {
    json!({
        "strategy": strategy,
        "last_move_round": run.last_round(),
        "settled": run.settled(),
        "acting_rounds": run.acting_rounds().count(),
        "moves": run.moves().count(),
        "moves_back": run.moves_back,
        "points_moved": run.points(),
        "peak": run.peak,
        "final_gap": run.final_gap(),
        "final_loads": run.final_loads,
        "rounds": run.rounds.iter().map(round).collect::<Value>(),
    })
}

fn round(row: &RoundRow) -> Value {
    json!({
        "round": row.round,
        "loads": row.loads,
        "scores": row.scores,
        "moves": row.moves.iter().map(planned).collect::<Value>(),
        "hot_units": row.hot_units.iter().map(hot_unit).collect::<Value>(),
        "loads_after": row.loads_after,
        "gap_after": row.gap_after(),
        "points_moved": row.points(),
    })
}

fn planned(planned: &Move) -> Value {
    json!({
        "unit": planned.unit.0,
        "from": planned.from.0,
        "to": planned.to.0,
        "load": planned.reason.load,
        "reason": planned.reason.to_string(),
    })
}

fn hot_unit(hot: &HotUnit) -> Value {
    json!({
        "shard": hot.shard.0,
        "unit": hot.largest.map(|(unit, _)| unit.0),
        "load": hot.largest.map(|(_, load)| load),
        "gap": hot.gap,
        "quiet_until": hot.quiet_until,
    })
}

fn fluid(round: &FluidRound) -> Value {
    json!({
        "round": round.round,
        "scores": round.scores,
        "moved_0_to_1": round.moved,
        "loads_after": round.loads,
    })
}
