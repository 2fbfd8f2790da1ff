/* SPDX-License-Identifier: Apache-2.0 */
/* trek-run --agent: on another machine, it starts the processes that trek-run requests, and passes on what they write
 * and how they end. */
#ifndef TREK_TOOLS_RUN_AGENT_H
#define TREK_TOOLS_RUN_AGENT_H

/* The whole life of the program: talks to trek-run over standard input and output, and ends when these end, together
 * with everything it has started. */
int agent_run(void);

#endif
