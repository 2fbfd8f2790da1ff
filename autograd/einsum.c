/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of products by labels of dimensions: einsum and tensordot. Operands are contracted in pairs. Each contraction
 * is a batched matrix product, for which dimensions are permuted and merged, as views wherever strides allow. */
#include "autograd/ops.h"
#include "autograd/tape_internal.h"

/* Labels in the order of an implicit output: capital letters, then small ones, then the dimensions of an ellipsis,
 * with the last of them last. */
enum { LETTERS = 52, LABELS = LETTERS + TREK_MAX_DIMS, MOST_OPERANDS = 32 };

typedef struct labelled {
    trek_var *x;
    int n, labels[TREK_MAX_DIMS];
    int ellipsis; /* of a term: the position of the label behind it; -1 for none */
} labelled;

typedef struct contraction {
    labelled parts[MOST_OPERANDS], output;
    int count;
} contraction;

/* --- sets of labels --------------------------------------------------------------------------- */

static uint64_t bit(int label) { return (uint64_t)1 << label; }

static uint64_t set_of(const labelled *x)
{
    uint64_t set = 0;
    for (int d = 0; d < x->n; d++)
        set |= bit(x->labels[d]);
    return set;
}

static int place_of(const labelled *x, int label)
{
    for (int d = 0; d < x->n; d++)
        if (x->labels[d] == label)
            return d;
    return -1;
}

static void drop_label(labelled *x, int d)
{
    for (int k = d + 1; k < x->n; k++)
        x->labels[k - 1] = x->labels[k];
    x->n--;
}

/* Appends the labels of x that are in the set to the n in `to`. Returns their total number. */
static int pick(const labelled *x, uint64_t set, int *to, int n)
{
    for (int d = 0; d < x->n; d++)
        if (set & bit(x->labels[d]))
            to[n++] = x->labels[d];
    return n;
}

/* --- one product ------------------------------------------------------------------------------- */

/* Sums over the labels that are not kept. */
static bool sum_others(labelled *x, uint64_t keep)
{
    trek_dims_list dims = { 0 };
    for (int d = x->n - 1; d >= 0; d--)
        if (!(keep & bit(x->labels[d]))) {
            dims.sizes[dims.ndim++] = d;
            drop_label(x, d);
        }
    if (dims.ndim > 0)
        x->x = trek_sum(x->x, dims, false);
    return x->x != NULL;
}

/* Returns x with the dimensions of those labels in their order, and a size of 1 where it has none. */
static trek_var *arranged(const labelled *x, const int *labels, int n)
{
    trek_dims_list order = { 0 };
    bool same = true;
    for (int k = 0; k < n; k++)
        if (place_of(x, labels[k]) >= 0) {
            same = same && place_of(x, labels[k]) == order.ndim;
            order.sizes[order.ndim++] = place_of(x, labels[k]);
        }
    trek_var *y = same ? x->x : trek_permute(x->x, order);
    for (int k = 0; k < n; k++)
        if (place_of(x, labels[k]) < 0)
            y = trek_unsqueeze(y, k);
    return y;
}

/* Returns the same as matrices: the first n_batch dimensions stay, the next n_rows are merged, and so are the rest. */
static trek_var *as_matrices(const labelled *x, const int *labels, int n_batch, int n_rows, int n)
{
    trek_var *y = arranged(x, labels, n);
    if (!y)
        return NULL;
    trek_shape from = trek_var_shape(y), shape = { .ndim = n_batch + 2 };
    for (int d = 0; d < n_batch; d++)
        shape.sizes[d] = from.sizes[d];
    shape.sizes[n_batch] = shape.sizes[n_batch + 1] = 1;
    for (int d = n_batch; d < n; d++)
        shape.sizes[n_batch + (d >= n_batch + n_rows)] *= from.sizes[d];
    return trek_reshape(y, shape);
}

/* Multiplies rows of a by columns of b. The result's labels are those of the batch, of a alone, and of b alone. */
static trek_var *matrices(const labelled *a, const labelled *b, uint64_t batch, uint64_t summed, labelled *made)
{
    int left[TREK_MAX_DIMS] = { 0 }, right[TREK_MAX_DIMS] = { 0 };
    uint64_t in_a = set_of(a), in_b = set_of(b);
    int n_batch = pick(a, batch, left, 0), rows = pick(a, in_a & ~in_b, left, n_batch) - n_batch;
    int n_left = pick(a, summed, left, n_batch + rows), n_summed = n_left - n_batch - rows;
    pick(a, batch, right, 0);
    pick(a, summed, right, n_batch);
    int n_right = pick(b, in_b & ~in_a, right, n_batch + n_summed), cols = n_right - n_batch - n_summed;
    trek_var *x = as_matrices(a, left, n_batch, rows, n_left), *y = as_matrices(b, right, n_batch, n_summed, n_right);
    trek_shape shape = { .ndim = n_batch + rows + cols };
    *made = (labelled){ .n = shape.ndim };
    for (int d = 0; d < shape.ndim; d++) {
        bool of_left = d < n_batch + rows;
        made->labels[d] = of_left ? left[d] : right[d - rows + n_summed];
        const labelled *source = of_left ? a : b;
        shape.sizes[d] = trek_var_size(source->x, place_of(source, made->labels[d]));
    }
    return trek_reshape(trek_matmul(x, y), shape);
}

/* Computes the product of a and b, summed over what is not kept. The label that comes last in the result comes from b. */
static bool multiply(labelled *a, labelled *b, uint64_t keep, const labelled *output, labelled *made)
{
    if (!sum_others(a, keep | set_of(b)) || !sum_others(b, keep | set_of(a)))
        return false;
    uint64_t in_a = set_of(a), in_b = set_of(b), summed = in_a & in_b & ~keep;
    uint64_t all = (in_a | in_b) & keep;
    int n = 0;
    for (uint64_t rest = all; rest; rest &= rest - 1)
        n++;
    if (n > TREK_MAX_DIMS || n + 2 - __builtin_popcountll((in_a ^ in_b) & all) > TREK_MAX_DIMS) {
        trek_fail(TREK_ERR_UNSUPPORTED, "einsum: a product of %d dimensions; at most %d are possible", n, TREK_MAX_DIMS);
        return false;
    }
    if (summed) {
        bool turn = false;
        for (int d = 0; d < output->n; d++)
            if ((in_a ^ in_b) & bit(output->labels[d]))
                turn = (in_a & bit(output->labels[d])) != 0;
        made->x = turn ? matrices(b, a, in_a & in_b & keep, summed, made) : matrices(a, b, in_a & in_b & keep, summed, made);
        return made->x != NULL;
    }
    labelled both = { .n = pick(output, all, both.labels, 0) };
    both.n = pick(a, all & ~set_of(&both), both.labels, both.n);
    both.n = pick(b, all & ~set_of(&both), both.labels, both.n);
    *made = both;
    made->x = trek_mul(arranged(a, both.labels, both.n), arranged(b, both.labels, both.n));
    return made->x != NULL;
}

/* --- all of them ------------------------------------------------------------------------------- */

/* Turns repeated labels into diagonals. Returns false on failure. */
static bool take_diagonals(const char *name, labelled *x)
{
    for (int d = 0; d < x->n; d++)
        for (int e = d + 1; e < x->n; e++) {
            if (x->labels[e] != x->labels[d])
                continue;
            if (trek_var_size(x->x, d) != trek_var_size(x->x, e))
                return trek_fail(TREK_ERR_SHAPE, "%s: a label stands for two dimensions of sizes %lld and %lld; must be equal",
                                 name, (long long)trek_var_size(x->x, d), (long long)trek_var_size(x->x, e)),
                       false;
            int label = x->labels[d];
            if (!(x->x = trek_diagonal(x->x, 0, d, e)))
                return false;
            drop_label(x, e);
            drop_label(x, d);
            x->labels[x->n++] = label;
            return take_diagonals(name, x);
        }
    return true;
}

/* Determines the size of each label, and drops dimensions of size 1 where the label is larger. Returns false on
 * failure. */
static bool agree(const char *name, contraction *c, int64_t *sizes)
{
    for (int label = 0; label < LABELS; label++)
        sizes[label] = 1;
    for (int k = 0; k < c->count; k++)
        for (int d = 0; d < c->parts[k].n; d++) {
            int64_t size = trek_var_size(c->parts[k].x, d), *have = &sizes[c->parts[k].labels[d]];
            if (size != 1 && *have != 1 && size != *have)
                return trek_fail(TREK_ERR_SHAPE, "%s: operand %d: dimension %d has size %lld; another with its label has %lld",
                                 name, k, d, (long long)size, (long long)*have),
                       false;
            *have = size != 1 ? size : *have;
        }
    for (int k = 0; k < c->count; k++)
        for (int d = c->parts[k].n - 1; d >= 0; d--) {
            labelled *x = &c->parts[k];
            if (sizes[x->labels[d]] == 1 || trek_var_size(x->x, d) != 1)
                continue;
            if (!(x->x = trek_squeeze(x->x, d)))
                return false;
            drop_label(x, d);
        }
    return true;
}

/* Chooses the next pair: the two whose product takes the fewest multiplications, and among equals the first ones. */
static void choose(const contraction *c, const int64_t *sizes, int *first, int *second)
{
    double least = -1;
    for (int i = 0; i < c->count; i++)
        for (int j = i + 1; j < c->count; j++) {
            double work = 1;
            for (uint64_t set = set_of(&c->parts[i]) | set_of(&c->parts[j]); set; set &= set - 1)
                work *= (double)sizes[__builtin_ctzll(set)];
            if (least < 0 || work < least) {
                least = work;
                *first = i;
                *second = j;
            }
        }
}

static trek_var *contract(const char *name, contraction *c)
{
    int64_t sizes[LABELS];
    for (int k = 0; k < c->count; k++)
        if (!take_diagonals(name, &c->parts[k]))
            return NULL;
    if (!agree(name, c, sizes))
        return NULL;
    while (c->count > 1) {
        int i = 0, j = 1;
        uint64_t keep = set_of(&c->output);
        labelled made = { 0 };
        choose(c, sizes, &i, &j);
        for (int k = 0; k < c->count; k++)
            keep |= k == i || k == j ? 0 : set_of(&c->parts[k]);
        if (!multiply(&c->parts[i], &c->parts[j], keep, &c->output, &made))
            return NULL;
        c->parts[i] = made;
        c->parts[j] = c->parts[--c->count];
    }
    if (!sum_others(&c->parts[0], set_of(&c->output)))
        return NULL;
    return arranged(&c->parts[0], c->output.labels, c->output.n);
}

/* --- equations --------------------------------------------------------------------------------- */

static int label_of(char letter)
{
    return letter >= 'A' && letter <= 'Z' ? letter - 'A' : letter >= 'a' && letter <= 'z' ? letter - 'a' + LETTERS / 2 : -1;
}

/* Reads the letters up to a comma, an arrow or the end. Returns false on failure. */
static bool read_term(const char **at, labelled *term)
{
    *term = (labelled){ .ellipsis = -1 };
    for (; **at && **at != ',' && **at != '-'; ++*at) {
        if (**at == ' ')
            continue;
        bool dots = (*at)[0] == '.' && (*at)[1] == '.' && (*at)[2] == '.';
        if (dots && term->ellipsis < 0) {
            term->ellipsis = term->n;
            *at += 2;
            continue;
        }
        if (label_of(**at) < 0)
            return trek_fail(TREK_ERR_ARGUMENT, "einsum: equation: '%c'; must be a letter or part of one ellipsis", **at), false;
        if (term->n == TREK_MAX_DIMS)
            return trek_fail(TREK_ERR_ARGUMENT, "einsum: equation: a term of more than %d letters; must be fewer", TREK_MAX_DIMS),
                   false;
        term->labels[term->n++] = label_of(**at);
    }
    return true;
}

/* Matches a term to x. The ellipsis stands for the dimensions without a letter. Returns their number, or -1 with an
 * error. */
static int name_dimensions(labelled *term, trek_var *x, int number)
{
    int dims = trek_var_ndim(x), more = dims - term->n;
    if (more < 0 || (more > 0 && term->ellipsis < 0))
        return trek_fail(TREK_ERR_ARGUMENT, "einsum: operand %d: %d dimensions; its term names %d", number, dims, term->n), -1;
    for (int d = term->n - 1; term->ellipsis >= 0 && d >= term->ellipsis; d--)
        term->labels[d + more] = term->labels[d];
    for (int k = 0; k < more; k++)
        term->labels[term->ellipsis + k] = LABELS - more + k;
    term->n += more;
    term->x = x;
    return more;
}

/* Makes the implicit output: an ellipsis, and the letters that occur once. */
static bool output_of_itself(contraction *c, int more)
{
    int seen[LETTERS] = { 0 };
    for (int k = 0; k < c->count; k++)
        for (int d = 0; d < c->parts[k].n; d++)
            if (c->parts[k].labels[d] < LETTERS)
                seen[c->parts[k].labels[d]]++;
    c->output = (labelled){ 0 };
    for (int k = 0; k < more; k++)
        c->output.labels[c->output.n++] = LABELS - more + k;
    for (int label = 0; label < LETTERS; label++) {
        if (seen[label] != 1)
            continue;
        if (c->output.n == TREK_MAX_DIMS)
            return trek_fail(TREK_ERR_UNSUPPORTED, "einsum: a result of more than %d dimensions; must be fewer", TREK_MAX_DIMS),
                   false;
        c->output.labels[c->output.n++] = label;
    }
    return true;
}

static bool read_output(const char *at, contraction *c, int more)
{
    labelled *output = &c->output;
    uint64_t there = 0, twice = 0;
    if (!read_term(&at, output))
        return false;
    if (*at)
        return trek_fail(TREK_ERR_ARGUMENT, "einsum: equation: '%c' behind the arrow; must be letters", *at), false;
    for (int k = 0; k < c->count; k++)
        there |= set_of(&c->parts[k]);
    for (int d = 0; d < output->n; twice |= bit(output->labels[d++]))
        if (!(there & bit(output->labels[d])) || (twice & bit(output->labels[d])))
            return trek_fail(TREK_ERR_ARGUMENT, "einsum: equation: letter %d of the output is %s", d,
                             there & bit(output->labels[d]) ? "there twice" : "in no operand"),
                   false;
    if (output->ellipsis < 0)
        return true;
    if (output->n + more > TREK_MAX_DIMS)
        return trek_fail(TREK_ERR_UNSUPPORTED, "einsum: a result of more than %d dimensions; must be fewer", TREK_MAX_DIMS),
               false;
    for (int d = output->n - 1; d >= output->ellipsis; d--)
        output->labels[d + more] = output->labels[d];
    for (int k = 0; k < more; k++)
        output->labels[output->ellipsis + k] = LABELS - more + k;
    output->n += more;
    return true;
}

static bool read_equation(const char *at, trek_var *const *list, int count, contraction *c)
{
    int most = 0;
    for (c->count = 0; c->count < count; c->count++) {
        if (!read_term(&at, &c->parts[c->count]))
            return false;
        int more = name_dimensions(&c->parts[c->count], list[c->count], c->count);
        if (more < 0)
            return false;
        most = more > most ? more : most;
        bool last = c->count == count - 1;
        if (last != (*at != ','))
            return trek_fail(TREK_ERR_ARGUMENT, "einsum: equation: it has %s terms than there are operands, %d",
                             last ? "more" : "fewer", count),
                   false;
        at += !last;
    }
    if (!*at)
        return output_of_itself(c, most);
    if (at[1] != '>')
        return trek_fail(TREK_ERR_ARGUMENT, "einsum: equation: '-' without '>'"), false;
    return read_output(at + 2, c, most);
}

trek_var *trek_einsum(const char *equation, trek_var *const *list, int count)
{
    contraction c;
    if (!equation || !list)
        return trek_fail_missing("einsum", equation ? "list of operands" : "equation"), NULL;
    if (count < 1 || count > MOST_OPERANDS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "einsum: count: %d operands; must be 1 to %d", count, MOST_OPERANDS);
    for (int k = 0; k < count; k++)
        if (!list[k])
            return trek_fail_missing("einsum", "operand"), NULL;
    return read_equation(equation, list, count, &c) ? contract("einsum", &c) : NULL;
}

trek_var *trek_tensordot(trek_var *x, trek_var *y, trek_dims_list dims_x, trek_dims_list dims_y)
{
    contraction c = { .count = 2 };
    trek_var *in[2] = { x, y };
    const trek_dims_list *dims[2] = { &dims_x, &dims_y };
    if (!x || !y)
        return trek_fail_missing("tensordot", "input"), NULL;
    dims_x = trek_listed_dims(dims_x, trek_var_ndim(x));
    dims_y = trek_listed_dims(dims_y, trek_var_ndim(y));
    if (dims_x.ndim != dims_y.ndim || dims_x.ndim < 0 || dims_x.ndim > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_ARGUMENT, "tensordot: dims: %d dimensions of x, %d of y; must be equal", dims_x.ndim,
                              dims_y.ndim);
    for (int k = 0; k < 2; k++) {
        labelled *part = &c.parts[k];
        *part = (labelled){ .x = in[k], .n = trek_var_ndim(in[k]) };
        for (int d = 0; d < part->n; d++)
            part->labels[d] = TREK_MAX_DIMS * (k + 1) + d;
        for (int s = 0; s < dims_x.ndim; s++) {
            int d = trek_normalize_dim(dims[k]->sizes[s], part->n, "tensordot");
            if (d < 0)
                return NULL;
            if (part->n == 0 || part->labels[d] < TREK_MAX_DIMS)
                return trek_fail_null(TREK_ERR_ARGUMENT, "tensordot: dims: dimension %d occurs twice, or x or y is a scalar",
                                      d);
            part->labels[d] = s;
        }
    }
    uint64_t summed = bit(dims_x.ndim) - 1;
    int n = c.parts[0].n + c.parts[1].n - 2 * dims_x.ndim;
    if (n > TREK_MAX_DIMS)
        return trek_fail_null(TREK_ERR_UNSUPPORTED, "tensordot: a result of %d dimensions; at most %d are possible", n,
                              TREK_MAX_DIMS);
    c.output.n = pick(&c.parts[0], ~summed, c.output.labels, 0);
    c.output.n = pick(&c.parts[1], ~summed, c.output.labels, c.output.n);
    return contract("tensordot", &c);
}
