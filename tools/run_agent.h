/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run --agent: on another machine it starts the processes that trek-run asks for, and passes on what they write and how they
 * end. */
#ifndef TREK_TOOLS_RUN_AGENT_H
#define TREK_TOOLS_RUN_AGENT_H

/* The program's whole life: speaks with trek-run over standard input and output, and ends when those end, with all that it
 * started. */
int agent_run(void);

#endif
