/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of graphs: what DOT and SVG say, and of SVG that it is XML, that no two boxes overlap and no edge crosses one. */
#include <ctype.h>

#include "autograd/ops.h"
#include "graph/draw.h"
#include "graph/flow.h"
#include "graph/flow_branches.h"
#include "graph/passes.h"
#include "nn/layers.h"
#include "tensor/print.h"
#include "tests/graph/modules.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

#define HERE trek_cpu(0)
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

/* --- XML: elements that are closed, attributes in quotes, known entities, no bare signs --------------- */

enum { DEPTH = 32, BOXES = 512, LINES = 2048 };

typedef struct box {
    double x, y, w, h;
    char klass;
} box;

typedef struct drawing {
    int n_boxes, n_paths, n_texts;
    box boxes[BOXES];
    char *paths[LINES], *texts[LINES]; /* owned */
} drawing;

static double attribute(const char *tag, const char *name)
{
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *at = strstr(tag, key);
    return at ? atof(at + strlen(key)) : NAN;
}

static char *word_of(const char *tag, const char *name)
{
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *at = strstr(tag, key);
    return at ? strndup(at + strlen(key), strcspn(at + strlen(key), "\"")) : strdup("");
}

static void note_tag(drawing *d, const char *tag)
{
    char *klass = word_of(tag, "class");
    if (strncmp(tag, "rect", 4) == 0 && strchr("iobpc", klass[0]) && klass[0]) {
        assert_true(d->n_boxes < BOXES);
        d->boxes[d->n_boxes++] = (box){ attribute(tag, "x"), attribute(tag, "y"), attribute(tag, "width"),
                                        attribute(tag, "height"),
                                        klass[0] };
    }
    if (strncmp(tag, "path", 4) == 0 && klass[0] == 'e' && d->n_paths < LINES)
        d->paths[d->n_paths++] = word_of(tag, "d");
    free(klass);
}

/* After "<": the whole tag, and how long it is. Attributes are quoted, and hold no "<". */
static size_t check_tag(const char *at)
{
    size_t n = 0;
    bool quoted = false;
    for (; at[n] && (quoted || at[n] != '>'); n++) {
        quoted ^= at[n] == '"';
        assert_true(at[n] != '<' && (unsigned char)at[n] >= 0x20);
    }
    assert_true(at[n] == '>' && !quoted);
    return n;
}

static void check_entity(const char *at)
{
    static const char *const known[] = { "&amp;", "&lt;", "&gt;", "&quot;", "&#39;" };
    for (int k = 0; k < 5; k++)
        if (strncmp(at, known[k], strlen(known[k])) == 0)
            return;
    fail_msg("an entity: %.20s", at);
}

static void read_svg(const char *text, drawing *d)
{
    char *open[DEPTH];
    int depth = 0;
    memset(d, 0, sizeof *d);
    for (const char *at = text; *at;) {
        if (*at != '<') {
            const char *from = at;
            for (; *at && *at != '<'; at++)
                if (*at == '&' && !(depth && strcmp(open[depth - 1], "style") == 0))
                    check_entity(at);
            if (depth && strcmp(open[depth - 1], "text") == 0 && d->n_texts < LINES)
                d->texts[d->n_texts++] = strndup(from, (size_t)(at - from));
            continue;
        }
        size_t n = check_tag(++at), name = strcspn(at, " >/");
        if (*at == '/') {
            assert_true(depth > 0);
            depth--;
            if (strncmp(at + 1, open[depth], n - 1) != 0 || strlen(open[depth]) != n - 1)
                fail_msg("</%.*s> ends <%s>", (int)n - 1, at + 1, open[depth]);
            free(open[depth]);
        } else {
            char *tag = strndup(at, n);
            note_tag(d, tag);
            free(tag);
            if (at[n - 1] != '/') {
                assert_true(depth < DEPTH);
                open[depth++] = strndup(at, name);
            }
        }
        at += n + 1;
    }
    assert_int_equal(depth, 0);
}

static void free_drawing(drawing *d)
{
    for (int k = 0; k < d->n_paths; k++)
        free(d->paths[k]);
    for (int k = 0; k < d->n_texts; k++)
        free(d->texts[k]);
}

static bool has_text(const drawing *d, const char *text)
{
    for (int k = 0; k < d->n_texts; k++)
        if (strcmp(d->texts[k], text) == 0)
            return true;
    return false;
}

/* --- geometry ------------------------------------------------------------------------------- */

static bool within(const box *a, const box *b)
{
    return a->x >= b->x && a->y >= b->y && a->x + a->w <= b->x + b->w && a->y + a->h <= b->y + b->h;
}

static bool apart(const box *a, const box *b)
{
    return a->x + a->w < b->x || b->x + b->w < a->x || a->y + a->h < b->y || b->y + b->h < a->y;
}

/* Inside a box that is no cluster, by more than a pixel. */
static const box *struck(const drawing *d, double x, double y)
{
    for (int k = 0; k < d->n_boxes; k++) {
        const box *b = &d->boxes[k];
        if (b->klass != 'c' && x > b->x + 1.5 && x < b->x + b->w - 1.5 && y > b->y + 1.5 && y < b->y + b->h - 1.5)
            return b;
    }
    return NULL;
}

static void follow(const drawing *d, const char *path)
{
    double x = 0, y = 0;
    for (const char *at = path; *at;) {
        char kind = *at++;
        double v[6];
        int n = kind == 'C' ? 6 : 2;
        for (int k = 0; k < n; k++)
            v[k] = strtod(at, (char **)&at);
        double ex = v[n - 2], ey = v[n - 1];
        for (int k = 0; k <= 40 && kind != 'M'; k++) {
            double t = k / 40.0, u = 1 - t;
            double px = kind == 'L' ? u * x + t * ex
                : u * u * u * x + 3 * u * u * t * v[0] + 3 * u * t * t * v[2] + t * t * t * ex;
            double py = kind == 'L' ? u * y + t * ey
                : u * u * u * y + 3 * u * u * t * v[1] + 3 * u * t * t * v[3] + t * t * t * ey;
            const box *b = struck(d, px, py);
            if (b)
                fail_msg("%s crosses the box %c at %g, %g", path, b->klass, b->x, b->y);
        }
        x = ex;
        y = ey;
    }
}

static void check_geometry(const char *svg, const drawing *d)
{
    double w = attribute(svg, "width"), h = attribute(svg, "height");
    box whole = { 0, 0, w, h, 0 };
    for (int k = 0; k < d->n_boxes; k++) {
        assert_true(within(&d->boxes[k], &whole));
        for (int j = 0; j < k; j++) {
            const box *a = &d->boxes[j], *b = &d->boxes[k];
            bool nested = (a->klass == 'c' && within(b, a)) || (b->klass == 'c' && within(a, b));
            if (!nested && !apart(a, b))
                fail_msg("boxes %c at %g, %g and %c at %g, %g overlap", a->klass, a->x, a->y, b->klass, b->x, b->y);
        }
    }
    for (int k = 0; k < d->n_paths; k++)
        follow(d, d->paths[k]);
}

static drawing *draw(trek_graph *graph, const trek_graph_draw_opts *opts)
{
    char *svg = trek_graph_svg(graph, opts);
    if (!svg)
        fail_msg("%s", trek_error());
    drawing *d = malloc(sizeof *d);
    read_svg(svg, d);
    check_geometry(svg, d);
    trek_string_free(&svg);
    return d;
}

static void done(drawing *d)
{
    free_drawing(d);
    free(d);
}

/* --- what is drawn ------------------------------------------------------------------------------ */

/* A stem with a tag that is hard to write, a residual, a fork, a nested graph (with one inside) that also reads the tag, a state.
 */
static trek_graph *sample(void)
{
    trek_flow *core = trek_flow_new();
    trek_module *heads[3] = { trek_nn_linear(8, 8, HERE), trek_nn_linear(8, 8, HERE), trek_nn_linear(8, 8, HERE) };
    trek_flow_tag(trek_flow_merge(trek_flow_split(core, heads, 3), TREK_REDUCTION_MEAN), "deep");
    trek_flow *encoder = trek_flow_from(trek_nn_relu());
    trek_flow_input(encoder, "memory");
    trek_flow_label(trek_flow_through(encoder, trek_graph_module(built(core))), "core");
    trek_flow_using(trek_flow_through(encoder, trek_module_new(&sum_class)), "memory");
    trek_flow *flow = trek_flow_tag(trek_flow_label(trek_flow_from(trek_nn_linear(4, 8, HERE)), "stem"), "a<b & \"c\" '\x01\xff");
    trek_flow_also(flow, trek_nn_tanh());
    trek_flow_tag(trek_flow_fork(flow, trek_nn_linear(8, 2, HERE)), "aux");
    trek_flow_using(trek_flow_through(flow, trek_graph_module(built(encoder))), "a<b & \"c\" '\x01\xff");
    trek_flow_label(flow, "encoder");
    trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), "later");
    trek_flow_tag(trek_flow_through(flow, trek_nn_gelu()), "later");
    trek_module *chain[3] = { trek_nn_linear(8, 8, HERE), trek_nn_relu(), trek_nn_linear(8, 3, HERE) };
    trek_flow_through(flow, trek_nn_sequential(chain, 3));
    return built(flow);
}

static void plain(void **state)
{
    trek_graph *graph = sample();
    drawing *d = draw(graph, NULL);
    static const char *const texts[] = { "input", "stem", "linear(4, 8)", "#a&lt;b &amp; &quot;c&quot; &#39;??", "+", "tanh",
                                         "#aux",
                                         "encoder", "graph", "sum", "gelu", "#later", "sequential(3)", "output" };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        if (!has_text(d, texts[k]))
            fail_msg("no text %s", texts[k]);
    assert_int_equal(d->n_boxes, 10); /* input, output, eight nodes */
    assert_int_equal(d->n_paths, 12);
    assert_false(has_text(d, "core"));
    done(d);
    trek_graph_free(&graph);
}

static void everything(void **state)
{
    trek_graph *graph = sample();
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true });
    assert_int_equal(trek_timeline_attach(t), TREK_OK);
    for (int k = 0; k < 3; k++) {
        trek_graph_reset_state(graph);
        trek_var *y = trek_graph_forward(graph, trek_var_from(trek_tensor_ones(trek_dims(500, 4), TREK_F32, HERE)));
        assert_int_equal(trek_graph_backward(graph, trek_mean(y, trek_dims_all(), false)), TREK_OK);
    }
    trek_graph_reset_state(graph);
    trek_timeline_detach(t);
    trek_shape shape = trek_dims(5, 4);
    trek_summary_opts run = { .n_inputs = 1, .shapes = &shape };
    trek_graph_draw_opts opts = { .timeline = t, .run = &run, .params = true, .children = true, .nested = 1 };
    drawing *d = draw(graph, &opts);
    static const char *const texts[] = { "40 parameters", "-&gt; [5, 8]", "-&gt; [5, 3]", "- 0: linear", "- 1: relu", "core",
                                         "memory" };
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        if (!has_text(d, texts[k]))
            fail_msg("no text %s", texts[k]);
    int times = 0;
    for (int k = 0; k < d->n_texts; k++)
        times += strstr(d->texts[k], " ms, ") != NULL;
    assert_int_equal(times, 9 - 1 + 3 - 1); /* all modules but the linear ones' activations, that ran with them */
    assert_false(has_text(d, "#deep"));
    int clusters = 0;
    for (int k = 0; k < d->n_boxes; k++)
        clusters += d->boxes[k].klass == 'c';
    assert_int_equal(clusters, 1);
    done(d);
    opts.nested = TREK_OFF;
    d = draw(graph, &opts);
    assert_true(has_text(d, "#deep") && has_text(d, "mean"));
    done(d);

    char *dot = trek_graph_dot_with(graph, &opts);
    static const char *const says[] = { "subgraph cluster_1 {", "subgraph cluster_2 {", "g1_v0 [label=\"input\", shape=ellipse];",
        "g2_out", "-> g1_v0;", "g1_out -> v", "-> g1_v2 [style=bold];", "40 parameters\\n-> [5, 8]\\n",
        "style=filled, fillcolor=\"#ff",
        "[style=dashed, constraint=false]", "- 1: relu" };
    for (size_t k = 0; k < sizeof says / sizeof *says; k++)
        if (!strstr(dot, says[k]))
            fail_msg("no %s in\n%s", says[k], dot);
    trek_string_free(&dot);
    trek_timeline_free(&t);
    trek_graph_free(&graph);
}

static void mistakes(void **state)
{
    trek_graph *graph = sample();
    trek_timeline *plain_one = trek_timeline_new(NULL);
    trek_shape shape = trek_dims(5, 3);
    trek_summary_opts run = { .n_inputs = 1, .shapes = &shape };
    REFUSED(trek_graph_svg(NULL, NULL), TREK_ERR_ARGUMENT, "");
    assert_null(trek_graph_dot_with(NULL, NULL));
    trek_error_clear();
    REFUSED(trek_graph_svg(graph, &(trek_graph_draw_opts){ .nested = -2 }), TREK_ERR_ARGUMENT, "");
    REFUSED(trek_graph_svg(graph, &(trek_graph_draw_opts){ .timeline = plain_one }), TREK_ERR_STATE, "");
    REFUSED(trek_graph_dot_with(graph, &(trek_graph_draw_opts){ .run = &run }), TREK_ERR_SHAPE, "");
    trek_timeline_free(&plain_one);
    trek_graph_free(&graph);
}

/* Memory may end anywhere: an error, and nothing that stays behind. */
static void no_memory(void **state)
{
    trek_graph *graph = sample();
    trek_timeline *t = trek_timeline_new(&(trek_timeline_opts){ .ops = true });
    trek_timeline_attach(t);
    trek_graph_forward(graph, trek_var_from(trek_tensor_ones(trek_dims(5, 4), TREK_F32, HERE)));
    trek_timeline_detach(t);
    trek_shape shape = trek_dims(5, 4);
    trek_summary_opts run = { .n_inputs = 1, .shapes = &shape };
    trek_graph_draw_opts opts = { .timeline = t, .run = &run, .params = true, .children = true, .nested = TREK_OFF };
    test_memory.fail_count = 2; /* it is asked twice */
    for (int kind = 0; kind < 3; kind++) {
        int64_t fail_at = 1;
        for (char *text = NULL; !text; fail_at++) {
            test_allocator_restart(fail_at);
            text = kind == 0 ? trek_graph_svg(graph, &opts) : kind == 1 ? trek_graph_dot_with(graph, &opts)
                : trek_module_summary_with(trek_graph_module(graph), &run);
            test_allocator_restart(0);
            if (!text && trek_error_status() != TREK_ERR_MEMORY)
                fail_msg("allocation %d: %s", (int)fail_at, trek_error());
            trek_error_clear();
            if (text)
                trek_string_free(&text), text = (char *)"";
        }
        if (fail_at < 20)
            fail_msg("%d allocations of kind %d", (int)fail_at, kind);
    }
    assert_true(trek_module_is_training(trek_graph_module(graph)));
    trek_timeline_free(&t);
    trek_graph_free(&graph);
}

/* --- random graphs --------------------------------------------------------------------------------- */

static uint32_t stream;
static int choose(int n) { return (int)(fabsf(test_number(77, stream++)) * (float)n) % n; }

/* Values of one shape: whatever the wiring. tags: made so far. */
static trek_graph *random_graph(int depth)
{
    trek_flow *flow = trek_flow_from(trek_nn_relu());
    char tag[16];
    bool own[20];
    int tags = 0, states = 0, verbs = 3 + choose(14);
    for (int k = 0; k < verbs; k++)
        switch (choose(7)) {
        case 0: trek_flow_also(flow, trek_nn_tanh()); break;
        case 1: {
            trek_module *split[4] = { trek_nn_relu(), trek_nn_tanh(), trek_nn_sigmoid(), trek_nn_relu() };
            int n = 2 + choose(3);
            for (int j = n; j < 4; j++)
                trek_module_free(&split[j]);
            trek_flow_merge(trek_flow_split(flow, split, n), TREK_REDUCTION_SUM);
            break;
        }
        case 2: trek_flow_through(flow, depth ? trek_graph_module(random_graph(depth - 1)) : trek_nn_gelu()); break;
        case 3: snprintf(tag, sizeof tag, "t%d", tags++); trek_flow_tag(trek_flow_fork(flow, trek_nn_sigmoid()), tag); break;
        case 4: snprintf(tag, sizeof tag, "t%d", tags++); trek_flow_tag(flow, tag); break;
        case 5:
            if (tags) {
                snprintf(tag, sizeof tag, "t%d", choose(tags));
                trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), tag);
            }
            break;
        case 6:
            snprintf(tag, sizeof tag, "s%d", states);
            trek_flow_using(trek_flow_through(flow, trek_module_new(&sum_class)), tag);
            if ((own[states++] = choose(2))) /* it reads its own */
                trek_flow_tag(flow, tag);
            break;
        }
    for (int k = 0; k < states; k++) {
        if (own[k])
            continue;
        snprintf(tag, sizeof tag, "s%d", k);
        trek_flow_tag(trek_flow_through(flow, trek_nn_relu()), tag);
    }
    return trek_flow_build(flow);
}

static void random_ones(void **state)
{
    trek_graph_draw_opts opts = { .nested = TREK_OFF, .params = true };
    stream = 0;
    for (int k = 0; k < 80; k++) {
        trek_graph *graph = random_graph(2);
        if (!graph)
            fail_msg("%s", trek_error());
        done(draw(graph, &opts));
        trek_graph_free(&graph);
    }
}

int main(void)
{
    test_allocator_use();
    const struct CMUnitTest tests[] = { TEST(plain), TEST(everything), TEST(mistakes), TEST(no_memory), TEST(random_ones) };
    return cmocka_run_group_tests_name("draw", tests, NULL, NULL);
}
