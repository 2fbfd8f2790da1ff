/* SPDX-License-Identifier: Apache-2.0 */
/* The position of a process in the tree: from whom its gathers come and to whom they go. */
#include "distributed/control/control_internal.h"
#include "tensor/trace.h"

void trek_control_take_place(trek_control *control, int fan)
{
    control->node = trek_tree_place(control->processes, fan, control->process);
    control->has_tree = fan > 0;
}

int trek_control_choose_fan(const trek_control *control)
{
    int fan = trek_tree_fan(control->processes, control->flat);
    for (int p = 1; p < control->processes && fan; p++)
        if (trek_tree_place(control->processes, fan, p).children > 0 && control->peers[p].port == 0) {
            trek_log_message(TREK_LOG_LEVEL_INFO, "control: process %d does not listen: all gathers go to process 0 directly", p);
            fan = 0;
        }
    return fan;
}

trek_control_link *trek_control_up(trek_control *control)
{
    return control->node.parent == 0 ? &control->links[0] : &control->up;
}

trek_control_link *trek_control_below(trek_control *control, int k)
{
    int size;
    return control->process == 0 ? &control->links[trek_tree_child(&control->node, k, &size)] : &control->below[k];
}
