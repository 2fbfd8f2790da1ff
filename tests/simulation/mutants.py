# SPDX-License-Identifier: Apache-2.0
"""Whether simulated schedules notice a defect that the job's control channel, rendezvous points, communicators or runs once had, or might have. Each mutant
takes one mend back; it is compiled, and the simulation must fail within its schedules.

First those schedules are run that are known to find it, by found.txt: without the mutant they must go well. As a seed is a schedule
for one version of the sources, they may have become other ones. Then it is searched for, first in the scenario that found it before.
A mutant that found.txt calls rare was found among 100,000 schedules only: if its seeds have become others, that is printed. It is not searched for, and
this is no failure, since it says nothing about the change that made them others.

Usage: mutants.py <source root> <build folder> [--record] [name ...]
With --record all are searched for, and found.txt is written anew.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

root, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
recording = "--record" in sys.argv
chosen = [word for word in sys.argv[3:] if word != "--record"]
PROGRAM = "tests/simulation/test_simulation"
FOUND = root / "tests/simulation/found.txt"
RUNS = "20000"
RARE = "100000" # to record a mutant that the first do not find
SCENARIOS = ["control", "regroup", "run", "grains", "loops", "counter"]
SEEDS = 2 # kept for each mutant

# name, file, what stands there, what stood there before
MUTANTS = [
    ("late_comers_are_not_told", "distributed/control/control.c", "    if (!started)\n        tell_late_comers(control);\n", ""),
    ("waits_longer_than_process_0", "distributed/control/arrivals.c",
     "hello->left_ns > 0 && hello->left_ns <", "false && hello->left_ns <"),
    ("lost_one_is_not_told", "distributed/control/serve.c",
     "    else if (!atomic_load(&control->stopping) && !control->peers[process].left)\n"
     "        end_without(control, process, how);\n    trek_control_link_close(link);\n",
     "    trek_control_link_close(link);\n"
     "    if (!forgets(control, process) && !atomic_load(&control->stopping) && !control->peers[process].left)\n"
     "        end_without(control, process, how);\n"),
    ("no_rendezvous_without_a_reason", "distributed/comm/regroup.c",
     "return trek_control_ended(comm->control)\n                   ? trek_control_fail(comm->control)", "return false ? TREK_OK"),
    ("begins_before_all_have_entered", "distributed/comm/regroup.c", "        status = await_entered(comm, status);\n", ""),
    ("notes_a_call_after_the_end", "distributed/comm/meeting.c",
     "    if (trek_meeting_ended(comm)) /* a rank may still be comparing the notes of the last call that all came to */\n"
     "        return fail_ended(self, \"\");\n", ""),
    ("gather_waits_for_who_has_left", "distributed/control/end.c",
     "    trek_control_check_left(control);\n    trek_control_gather_left(control);\n", "    trek_control_check_left(control);\n"),
    ("blames_others_after_a_stop", "distributed/control/serve.c", "    if (slept) {\n", "    if (slept && false) {\n"),
    ("silent_parent_is_waited_for", "distributed/control/branch.c", "    if (control->up.fd >= 0 && !trek_seal_is_open(&control->up.seal) && now", "    if (false && now"),
    ("join_waits_for_who_died", "distributed/control/find_members.c",
     "    bool died = host_died(rendezvous);\n", "    bool died = false && host_died(rendezvous);\n"),
    ("orphaned_lock_in_a_join", "distributed/control/control.c",
     "    bool started = control->started; /* the group may have ended again; the first call reports that */\n"
     "    trek_lock_release(&control->lock);\n",
     "    bool started = control->started;\n    if (started)\n        trek_lock_release(&control->lock);\n"),
    ("forgotten_hook_still_runs", "distributed/control/end.c",
     "        while (control->hooks[h].calling && !trek_thread_equal(trek_thread_self(), control->thread))\n"
     "            trek_condition_wait(&control->changed, &control->lock);\n", ""),
    ("who_has_not_noticed_a_death_is_dead", "distributed/control/find_members.c", "        trek_sleep_ns(NOTICE_NS);\n", "        break;\n"),
    ("guest_that_died_is_waited_for", "distributed/control/find_members.c",
     "        if (rendezvous->visitors[k].answered && rendezvous->visitors[k].line.fd < 0) {", "        if (false) {"),
    ("epoch_on_averages_is_left_out", "distributed/run/elastic_kept.c",
     "    if (status == TREK_OK && trek_step_averages(s) && batch == 0)\n        status = trek_loader_seek(run->train, epoch, 0); "
     "/* it is at the end of the epoch before */\n", ""),
    ("guest_keeps_its_visitors", "distributed/control/join_queue.c",
     "    tell(rendezvous, visitor, TREK_RENDEZVOUS_GO, &rendezvous->host);\n    visitor->number = -1; /* it does not wait here */\n", ""),
    ("host_does_not_hear_its_elder", "distributed/control/rendezvous.c", "    note_elder(rendezvous, number);\n", ""),
    ("nobody_begins_anew", "distributed/run/elastic_newest.c",
     "    *from_start = newest.at.epoch < 0 && !late;\n", "    *from_start = false;\n"),
    ("errors_of_the_old_group", "distributed/run/elastic.c", "    trek_error_clear(); /* errors of the old group's calls */\n", ""),
    ("new_process_0_writes_nothing", "distributed/run/keep.c", "    trek_status status = trek_run_save_begin(run); /*",
     "    trek_status status = run->elastic ? TREK_OK : trek_run_save_begin(run); /*"),
    ("dropped_step_is_not_trained_again", "distributed/run/elastic_kept.c",
     "        status = trek_loader_seek(run->train, e->at.epoch, e->at.batch);\n", "        status = TREK_OK;\n"),
    ("one_dies_at_the_very_end", "distributed/run/train.c",
     "    while (status != TREK_OK && trek_run_elastic_go_on(run, &status, clean_up, build)) {\n        status = is_over",
     "    while (false) {\n        status = is_over"),
    ("next_group_is_turned_away", "distributed/control/arrivals.c",
     "if (comes_early(control, &hello)) {", "if (false) {"),
    ("old_group_closes_its_rendezvous", "distributed/control/serve.c", "(waited || control->patient)", "control->patient"),
    ("lost_while_joining_for_good", "distributed/control/serve.c", "    if (forgets(control, process))\n", "    if (false)\n"),
    ("goes_on_alone_after_a_stop", "distributed/control/find_members.c",
     "if (!awake && missing > 0) {", "if (false) {"),
    ("branch_below_process_0_that_left", "distributed/control/end.c", "    if (process == 0)\n        watch_branch(control);\n", ""),
    ("joiner_too_late_is_not_told", "distributed/control/rendezvous.c",
     "    if (!trek_forked)\n        trek_rendezvous_close_join_queue(rendezvous);\n", ""),
    ("rendezvous_asked_between_groups", "distributed/control/rendezvous.c",
     "static bool is_between(const trek_rendezvous *rendezvous) { return rendezvous->n_members == 0 && !rendezvous->joins; }",
     "static bool is_between(const trek_rendezvous *rendezvous) { return rendezvous == NULL; }"),
    ("who_stood_still_takes_others_for_dead", "distributed/control/find_members.c",
     "        guests[k].dead |= guests[k].probe.lost && !still && !goes;\n", "        guests[k].dead |= guests[k].probe.lost && !goes;\n"),
    ("late_before_it_has_read", "distributed/control/gather.c",
     "    if (control->late.decide_ns)\n        return;\n",
     "    if (!control->has_tree) {\n        decide_late(control, number, deadline_ns);\n        return;\n    }\n"
     "    if (control->late.decide_ns)\n        return;\n"),
    ("groups_one_round_apart", "distributed/control/find_members.c",
     "        if (visitor && visitor->generation > place->generation)\n            place->generation = visitor->generation;\n", ""),
    ("updates_before_all_have_the_gradient", "distributed/grains/exchange.c",
     "rank == 0 ? trek_survival_commit(&s->job) : TREK_OK", "TREK_OK"),
    ("sums_are_reduced_in_place", "distributed/grains/exchange.c",
     "        c.sums.digits[k] = (int64_t *)(void *)x->sums[k]->data;\n", "        c.sums.digits[k] = own->digits[k] + c.got * BLOCK;\n"),
    ("lost_grains_are_left_out", "distributed/grains/records.c", "        again = lost.n > 0;\n", "        again = false;\n"),
    ("own_records_are_forgotten", "distributed/grains/records.c",
     "    if (trek_job_is_alone(&s->job)) /* buffers were merged in them */\n", "    if (true)\n"),
    ("who_is_ready_does_not_count", "distributed/job/survival.c",
     "        ready = ready && all[p].commits == own->commits && all[p].ready;\n", ""),
    ("nobody_is_ahead", "distributed/job/survival.c", "    survival->commits += status == TREK_OK;\n", ""),
    ("batches_are_divided_anew_at_once", "distributed/pass/survivors.c",
     "        if (status == TREK_OK)\n            status = begin_pace(s);\n",
     "        if (status == TREK_OK)\n            status = begin_pace(s);\n        s->job.survival->held = false;\n"
     "        trek_division_publish(s);\n"),
    ("grain_shows_what_another_one_gave", "distributed/grains/slots.c",
     "        if (stays && !arena->segments[k].param->leaf->has_grad)\n            trek_arena_zero_segment(arena, k);\n", ""),
    ("who_is_away_does_not_count", "distributed/job/survival.c", "            survival->away |= all[p].away != 0;\n", ""),
    ("one_that_comes_takes_its_part_at_once", "distributed/pass/arrivals.c",
     "        trek_division_publish_nothing(s);\n", "        trek_division_publish(s);\n"),
    ("pieces_of_the_dead_count_as_sent", "distributed/control/fetch.c",
     "        f->pieces[s->asked[k]].asked--;\n", "        f->missing -= !f->pieces[s->asked[k]].here, f->pieces[s->asked[k]].here = true;\n"),
    ("state_stays_where_it_was", "distributed/pass/survivors.c", "    if (status == TREK_OK && s->twice && !survival->few)", "    if (false)"),
    ("who_lacks_parameters_does_not_count", "distributed/reduce/redivide.c", "p < x->arena.n_parts && some(x, is_stale); p++) {",
     "p < x->arena.n_parts && false; p++) {"),
    ("nobody_knows_that_all_who_had_it_are_lost", "distributed/reduce/redivide.c", "    return x->s->twice->gone;\n",
     "    return x->s->twice->gone = false;\n"),
    ("asks_who_is_silent_while_another_one_waits", "distributed/control/find_members.c",
     " && !(goes = has_elder(rendezvous))) {", ") {"),
    ("waits_anew_for_who_is_silent", "distributed/control/supply.c", "known ? known->heard_ns : begun;",
     "known && known->heard_ns > begun ? known->heard_ns : begun;"),
    ("divides_before_all_have_their_parts", "distributed/reduce/redivide.c", "    end(&x, status == TREK_OK);\n", "    end(&x, true);\n"),
    ("numbers_are_given_twice", "distributed/control/join_queue.c", "rendezvous->unused++ : note->number;", "rendezvous->unused : note->number;"),
    ("keeps_to_the_memory_of_one_machine", "distributed/comm/regroup.c", "return too_local ? NULL : regroup->engine;", "return regroup->engine;"),
    ("waits_for_joiners_like_for_members", "distributed/control/find_members.c", "missing += k < rendezvous->n_entered && !visitor", "missing += !visitor"),
    ("looks_for_suppliers_in_the_next_group", "distributed/comm/regroup.c",
     "    return trek_supply_fetch(&whole);\n",
     "    trek_supplier *suppliers = (trek_supplier *)(uintptr_t)whole.suppliers;\n"
     "    for (int p = 0; p < whole.n_suppliers && p < regroup->n; p++)\n"
     "        snprintf(suppliers[p].address, sizeof suppliers[p].address, \"%s\", regroup->members[p].address);\n"
     "    return trek_supply_fetch(&whole);\n"),
    ("lets_in_more_than_fit", "distributed/comm/regroup.c", "if (!joins || joiner.ranks > room) {", "if (!joins) {"),
    ("graphs_look_for_others_apart", "distributed/job/survival_members.c",
     "    trek_survival *survival = opts->lent ? NULL : trek_survival_of(job->comm);\n", "    trek_survival *survival = NULL;\n"),
    ("leaves_without_a_farewell", "distributed/job/survival_members.c", "    if (survival->regroup && !survival->lent && survival->least > 1)", "    if (false)"),
    ("passes_of_the_last_group_count", "distributed/pass/redo.c", "    while (status == TREK_OK && s->redo->groups", "    while (false && s->redo->groups"),
    ("parts_of_the_last_group_are_trained", "distributed/pass/redo.c",
     "    return batch->first == part->first && batch->n == part->n ? batch : part;\n", "    return batch;\n"),
    ("updates_before_all_have_the_sums", "distributed/reduce/reduce.c",
     "        own = commits ? trek_survival_commit(&s->job) : ", "        own = commits ? TREK_OK : "),
    ("keepers_update_parts_of_the_sums", "distributed/reduce/reduce.c", "(c->s->redo && c->s->twice)", "false"),
    ("who_gets_no_more_still_counts", "distributed/grains/counter.c",
     "    if (n == 0) /* it does not come again, so the others must take what is left */\n        l->pace[process] = -1;\n", ""),
    ("subjects_are_not_compared", "distributed/grains/counter.c", "c && least >= 0 && least == -most", "c"),
    ("asks_before_the_answer", "distributed/grains/counter.c",
     "            if (!c->waits)\n                ask(c, true);\n", "            ask(c, true);\n"),
    ("pass_begins_at_the_last_ones_end", "distributed/grains/counter.c", "c->waits = c->over = false;", "c->waits = false;"),
    ("answer_of_who_has_left", "distributed/control/ask.c", "    trek_control_ask_left(control);\n", ""),
]


def object_of(file):
    """The command that compiles the file for the simulation, and its object."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["output"].endswith(file.replace("/", "_") + ".o") and "trek_simulated" in entry["output"]:
            return shlex.split(entry["command"]), entry["output"]
    sys.exit("mutants: nothing compiles " + file)


def link_command():
    lines = subprocess.run(["ninja", "-C", str(build), "-t", "commands", PROGRAM], check=True, capture_output=True, text=True).stdout.splitlines()
    return shlex.split(next(line for line in reversed(lines) if " -o " + PROGRAM + " " in line))


def objects():
    entries = json.loads((build / "compile_commands.json").read_text())
    return [entry["output"] for entry in entries if "libtrek_simulated.a.p" in entry["output"]]


def make(folder, file, before, after):
    """The simulation with the mutant in it."""
    text = (root / file).read_text()
    if text.count(before) != 1:
        sys.exit("mutants: %s has %d times: %s" % (file, text.count(before), before))
    source = folder / pathlib.Path(file).name
    source.write_text(text.replace(before, after))
    command, output = object_of(file)
    mutant = folder / "mutant.o"
    command = [str(source) if part.endswith(file) else part for part in command]
    command[command.index("-o") + 1] = str(mutant)
    command += ["-Wno-error", "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-parameter", "-I", str(root), "-MF", str(folder / "mutant.d")]
    subprocess.run(command, cwd=build, check=True)
    archive = folder / "libtrek_simulated.a"
    subprocess.run(["ar", "csr", str(archive)] + [str(mutant) if o == output else o for o in objects()], cwd=build, check=True)
    link = [str(archive) if part.endswith("libtrek_simulated.a") else part for part in link_command()]
    program = folder / "test_simulation"
    link[link.index("-o") + 1] = str(program)
    subprocess.run(link, cwd=build, check=True)
    return program


def simulate(program, **settings):
    """Whether it has failed, and what it has said."""
    env = dict(os.environ, TREK_RANDOM_SEED="0", **settings) # at night, too, the same schedules
    done = subprocess.run([str(program)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800)
    return done.returncode != 0, done.stdout.decode(errors="replace")


def replay(program, scenario, seed):
    return simulate(program, TREK_SIMULATION_SCENARIO=scenario, TREK_SIMULATION_SEED=seed)[0]


def search(program, scenario, most, runs=RUNS):
    """What fails of the scenario's schedules, as said, `most` at most."""
    failed, said = simulate(program, TREK_SIMULATION_SCENARIO=scenario, TREK_SIMULATION_RUNS=runs, TREK_TEST_CASE="test_schedules",
                            TREK_SIMULATION_FAILURES=str(most))
    return re.findall(r"^simulation: (\w+, seed \d+, .*)", said, re.M) or (["it has failed otherwise"] if failed else [])


def recorded():
    """The schedules of each mutant that have found it: pairs of a scenario and a seed. And which are rare."""
    found, rare = {}, set()
    for line in FOUND.read_text().splitlines() if FOUND.exists() else []:
        name, _, words = line.partition(":")
        words = words.split()
        if not line.startswith("#"):
            found[name] = list(zip(words[::2], words[1::2]))
            if len(words) % 2:
                rare.add(name)
    return found, rare


def in_order(seeds):
    """All scenarios, first the one that has found the mutant before."""
    first = [scenario for scenario, _ in seeds][:1]
    return first + [s for s in SCENARIOS if s not in first]


def look(program, seeds, is_rare):
    """How the mutant is found, or "", and whether its schedules have become others. A rare one is not searched for."""
    for scenario, seed in seeds:
        if replay(program, scenario, seed):
            return "by %s, seed %s" % (scenario, seed), False
    if is_rare:
        return "", True
    for scenario in in_order(seeds):
        for how in search(program, scenario, 1):
            return how, True
    return "", True


def record(program, before):
    """Its first schedules, in the first scenario in which it is found at all, and whether it is rare: found only among more of them."""
    for runs in [RUNS, RARE]:
        for scenario in in_order(before):
            seeds = re.findall(r"^\w+, seed (\d+)", "\n".join(search(program, scenario, SEEDS if runs == RUNS else 1, runs)), re.M)
            if seeds:
                return [(scenario, seed) for seed in seeds], runs == RARE
    return [], False


def write(found):
    lines = ["# Schedules that find a mutant of mutants.py: scenarios and seeds, and \"rare\" if they are few. Written by mutants.py --record."]
    lines += ["%s: %s%s" % (name, " ".join("%s %s" % pair for pair in found[name]), " rare" if name in rare else "")
              for name, *_ in MUTANTS if found.get(name)]
    FOUND.write_text("\n".join(lines) + "\n")


(known, rare), missed, searched = recorded(), [], 0
for scenario, seed in sorted({pair for seeds in known.values() for pair in seeds}) if not recording else []:
    if replay(build / PROGRAM, scenario, seed):
        sys.exit("mutants: without any mutant, the schedule of %s, seed %s, fails" % (scenario, seed))
for name, file, before, after in [m for m in MUTANTS if m[0] in chosen] if chosen else MUTANTS:
    with tempfile.TemporaryDirectory() as folder:
        mutant = make(pathlib.Path(folder), file, before, after)
        if recording:
            known[name], few = record(mutant, known.get(name, []))
            (rare.add if few else rare.discard)(name)
            how, anew = " ".join("%s %s" % pair for pair in known[name]), False
            write(known)
        else:
            how, anew = look(mutant, known.get(name, []), name in rare)
    print("%-40s %s" % (name, "found: " + how if how else "NOT FOUND"), flush=True)
    searched += anew
    if not how and (recording or name not in rare):
        missed.append(name)
if searched:
    print("mutants: the schedules of %d have become others: mutants.py --record searches for them" % searched)
if missed:
    sys.exit("mutants: not found within %s schedules: %s" % (RUNS, ", ".join(missed)))
