/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios: what the processes of a simulated job do, and what must be true of them afterwards. */
#ifndef TREK_TESTS_SIMULATION_SCENARIO_H
#define TREK_TESTS_SIMULATION_SCENARIO_H

#include "tests/simulation/simulation.h"

typedef struct scenario {
    const char *name;
    int share; /* in 1000 of the schedules of a run of them all */
    /* Makes the job; sim is reset, faults are drawn from `random`. */
    void (*begin)(sim_random *random);
    void (*check)(void);
} scenario;

extern const scenario scenario_control, scenario_regroup, scenario_run, scenario_grains, scenario_loops,
    scenario_counter;

/* What goes wrong next to these is worth more: faults can wait for them. */
enum {
    GATHERS = 1, /* over the control channel */
    RENDEZVOUS_OPENS,
    IS_TO_ENTER, /* a group, of which it knows the members */
    OTHERS_ARE_SOUGHT,
    IS_ASKED, /* somebody who is missing, whether it is alive */
    SUMS_ARE_EXCHANGED, /* of gradients of grains */
    COMMITS, /* all have everything for what they do next */
    PARAMS_ARE_GATHERED, /* of a state that is divided: an update's parameters go to those that have not made it */
    STATE_IS_DIVIDED, /* who keeps what changes */
    STATE_IS_FETCHED, /* by one that has come */
    STARTED_AGAIN, /* by the launcher */
    OWN_MOMENTS /* of a scenario, from here on */
};

/* --- scenario.c: what they share --- */

/* Of a call of a process: what it came to, and how long it took. */
typedef struct outcome {
    trek_status status;
    char message[512];
} outcome;

/* Takes the thread's error. */
void outcome_take(outcome *to);
/* A call has taken that long of the time in which its process was not held up: a failure if it is more than it may. */
void outcome_time(const char *what, int64_t since_ns, int64_t most_ns);
/* Draws what the network and the scheduler are like. */
void scenario_settings(sim_random *random);
/* How many processes, mostly few. */
int scenario_processes(sim_random *random, int most);
/* Whether nothing has happened that a job must not outlast: no death, nobody away for more than a while. */
bool scenario_mild(void);
/* Whether machines were suspended for so short that a deadline, which does not stand still with them, has not passed. */
bool scenario_outlasts(int64_t deadline_ns);
/* Of that scenario's number: the latest process. */
sim_process *scenario_process(int number);
/* It lives, or has ended by itself, and no fault has touched it. */
bool scenario_survived(int number);
/* Whether the message is that of a process that was to join, where the one that lets others in stood still or was cut off. */
bool scenario_nobody_opened(const char *message);
/* Whether the machine of process 0 was cut off from others. */
bool scenario_zero_was_cut(void);
/* Whether the message names one that a fault has touched. */
bool scenario_names_culprit(const char *message);
/* Starts process `number` of `of`, on that machine, as trek-run does: with its place and address in its environment. again: in
 * the place of one that has been killed, or, if `number` is `of` or more, as one that was not in the job before. Not again, the
 * one whose number is `of` trains alone. */
sim_process *scenario_start(int number, int of, int machine, bool again, int (*run)(void *arg), void *arg);
/* The launcher: looks now and then for those of the first n that have been dead for so long, and starts them again, at most
 * `most` of them. */
void scenario_launch(int n, int most, int64_t after_ns, void (*start)(int number));
/* A fault that waits until somebody has come to the moment for one of the first `turns` times: one of n dies, or stands still,
 * and perhaps another one while the others find each other. Where something is exchanged it may be the one that has come, between
 * two that it tells. */
sim_fault *scenario_draw_moment(sim_random *random, int moment, int64_t turns, int n);
/* At the end of a process: it must leave no more open than these, which are its own as long as it lives. */
void scenario_leave(int number, int files, int threads);
/* All processes have ended. */
void scenario_check_ended(void);

#endif
