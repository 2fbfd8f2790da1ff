/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: what is read is written again to a text that reads the same. */
#include <string.h>

#include "distributed/balance/plan_internal.h"
#include "tensor/print.h"
#include "tensor/tensor.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_plan *plan = trek_plan_parse_named((const char *)data, size, "input");
    fuzz_settle(plan != NULL);
    trek_plan *file = trek_plan_load(fuzz_file(data, size));
    fuzz_settle(file != NULL);
    fuzz_expect((plan != NULL) == (file != NULL), "a text and a file are read alike");
    char *text = plan ? trek_plan_text(plan) : NULL, *again = NULL;
    trek_plan *back = text ? trek_plan_parse(text) : NULL;
    if (plan) {
        fuzz_expect(back && trek_plan_size(back) == trek_plan_size(plan), "a plan's text can be read");
        again = trek_plan_text(back);
        fuzz_expect(again && strcmp(text, again) == 0, "and says the same");
        trek_decision d;
        trek_plan_at(plan, 1 << 20, &d);
    }
    trek_string_free(&text);
    trek_string_free(&again);
    trek_plan_free(&plan);
    trek_plan_free(&file);
    trek_plan_free(&back);
    return 0;
}
