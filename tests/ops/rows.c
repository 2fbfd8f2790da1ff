/* SPDX-License-Identifier: Apache-2.0 */
/* The table of rows.def, held against tensor/ops.def at compile time. */
#include <stdio.h>
#include <string.h>

#include "tests/ops/suite.h"

/* IS_none(x): 1 if the token is none. */
#define PROBE_none ~, 1
#define SECOND(first, second, ...) second
#define EXPAND_SECOND(...) SECOND(__VA_ARGS__, 0, 0)
#define IS_NONE(rule) EXPAND_SECOND(PROBE_##rule)

/* What rows.def says of a row; a row that it lacks is an undeclared name below. */
enum {
#define ROW(name, family, d0, d1, d2, tolerance, gradients, special) GRADIENTS_##name = (gradients),
#include "tests/ops/rows.def"
#undef ROW
};

/* A gradient check exactly where there is a rule. */
#define TREK_OP(name, signature, infer, dtypes, flags, promote, key, needed, backward, saves, composite)                        \
    _Static_assert((GRADIENTS_##name != 0) == !IS_NONE(backward), #name ": rule and gradient check in rows.def do not agree");
#include "tensor/ops.def"
#undef TREK_OP

/* The same number of rows on both sides. */
enum {
#define ROW(name, ...) COUNTED_##name,
#include "tests/ops/rows.def"
#undef ROW
    ROWS_COUNTED
};
_Static_assert((int)ROWS_COUNTED == (int)TREK_OP_COUNT, "rows.def and ops.def have different rows");

static const struct rule_flags {
    bool rule, composite;
} rule_flags[TREK_OP_COUNT] = {
#define TREK_OP(name, signature, infer, dtypes, flags, promote, key, needed, backward, saves, composite)                        \
    [TREK_OP_##name] = { !IS_NONE(backward), !IS_NONE(composite) },
#include "tensor/ops.def"
#undef TREK_OP
};

#define ROW(name, kind, d0, d1, d2, tolerated, checked, extra)                                                                   \
    [TREK_OP_##name] = { .id = TREK_OP_##name, .family = family_##kind, .domain = { d0, d1, d2 }, .tolerance = tolerated,        \
                         .gradients = checked, .special = extra, .reference = reference_##name },
const op_row op_rows[TREK_OP_COUNT] = {
#include "tests/ops/rows.def"
};
#undef ROW

bool row_has_rule(const op_row *row)
{
    return rule_flags[row->id].rule;
}

bool row_has_composite(const op_row *row)
{
    return rule_flags[row->id].composite;
}

/* --- making cases ------------------------------------------------------------- */

op_case case_begin(const op_row *row, const char *label)
{
    op_case c;
    memset(&c, 0, sizeof c);
    snprintf(c.label, sizeof c.label, "%s %s", trek_ops[row->id].name, label);
    return c;
}

void case_input(op_case *c, const op_row *row, trek_shape shape)
{
    op_input *in = &c->in[c->n];
    in->shape = shape;
    in->domain = row->domain[c->n < 3 ? c->n : 2];
    in->dtype = -1;
    c->n++;
}

void case_typed(op_case *c, op_domain domain, int dtype, trek_shape shape, int64_t limit)
{
    c->in[c->n++] = (op_input){ .shape = shape, .domain = domain, .dtype = dtype, .limit = limit };
}

void case_absent(op_case *c)
{
    c->in[c->n++] = (op_input){ .absent = true };
}
