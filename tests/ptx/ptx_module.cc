/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a .ptx file: where its functions lie, and its variables. */
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "ptx_program.h"

namespace ptx {

bool Opcode::has(const char *suffix) const
{
    for (const std::string &s : suffixes)
        if (s == suffix)
            return true;
    return false;
}

unsigned bytes_of(const std::string &type)
{
    static const std::map<std::string, unsigned> sizes = { { "pred", 0 }, { "f16x2", 4 }, { "bf16x2", 4 }, { "bf16", 2 } };
    auto found = sizes.find(type);
    if (found != sizes.end())
        return found->second;
    unsigned bits = type.size() > 1 && strchr("busf", type[0]) ? (unsigned)atoi(type.c_str() + 1) : 0;
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
        throw Fault("no type known as ." + type);
    return bits / 8;
}

std::string Program::where(const Instruction &i) const
{
    size_t line = 1, at = text->find_first_not_of(" \t\r\n", i.place), end = text->find(';', at);
    for (size_t k = 0; k < at; k++)
        line += (*text)[k] == '\n';
    std::string shown = text->substr(at, end - at);
    for (char &c : shown)
        c = isspace((unsigned char)c) ? ' ' : c;
    return module + ":" + std::to_string(line) + ": " + shown;
}

void Counts::add(const Counts &o)
{
    const uint64_t *from = &o.launches;
    uint64_t *to = &launches;
    const size_t n = sizeof(Counts) / sizeof(uint64_t), maxima = 2; /* the last ones */
    for (size_t k = 0; k < n; k++)
        to[k] = k < n - maxima ? to[k] + from[k] : std::max(to[k], from[k]);
}

Module::Module(const std::string &name, std::string text) : name_(name), text_(std::move(text)) { index(); }
Module::~Module() = default;

static bool starts(const std::string &text, size_t at, const char *what) { return text.compare(at, strlen(what), what) == 0; }

/* Directives of modules begin lines. */
void Module::index()
{
    for (size_t at = 0; at < text_.size();) {
        size_t end = text_.find('\n', at);
        end = end == std::string::npos ? text_.size() : end;
        size_t next = end + 1;
        if (text_[at] == '.') {
            size_t word = at;
            for (const char *linkage : { ".visible ", ".weak ", ".extern " })
                word += starts(text_, word, linkage) ? strlen(linkage) : 0;
            if (starts(text_, word, ".entry ") || starts(text_, word, ".func ")) {
                add_function(at, word + (text_[word + 1] == 'e' ? 7 : 6), text_[word + 1] == 'e');
                next = std::max(next, functions_.empty() ? next : skip_to_);
            } else if (starts(text_, word, ".shared ") || starts(text_, word, ".global ") || starts(text_, word, ".const ")) {
                add_variable(word, text_.find(';', word));
            }
        }
        at = next;
    }
}

static size_t skip_comment(const std::string &text, size_t at)
{
    return text[at] == '/' && at + 1 < text.size() && text[at + 1] == '/' ? text.find('\n', at) : at;
}

/* From a name, which results in parentheses may precede, to the end of the body or of the declaration. */
void Module::add_function(size_t at, size_t name, bool entry)
{
    while (isspace((unsigned char)text_[name]))
        name++;
    if (text_[name] == '(')
        name = text_.find_first_not_of(" \t\n", text_.find(')', name) + 1);
    size_t name_end = text_.find_first_of(" \t\n(", name), body = name;
    while (body < text_.size() && text_[body] != '{' && text_[body] != ';')
        body = std::max(body + 1, skip_comment(text_, body));
    skip_to_ = body;
    if (body >= text_.size() || text_[body] == ';')
        return;
    size_t end = body + 1;
    for (int depth = 1; depth && end < text_.size();) {
        end += strcspn(text_.c_str() + end, "{}/");
        size_t after = skip_comment(text_, end);
        if (after != end) {
            end = after;
            continue;
        }
        depth += (text_[end] == '{') - (text_[end] == '}');
        end++;
    }
    skip_to_ = end;
    std::string known = text_.substr(name, name_end - name);
    functions_[known] = { at, body + 1, end - 1, entry };
    if (entry)
        entries_.push_back(known);
}

/* .shared .align 8 .b8 name[24]; or with = {1, 2} behind it */
void Module::add_variable(size_t at, size_t end)
{
    std::string line = text_.substr(at, end - at);
    Variable v = { line.substr(1, line.find(' ') - 1), 0, 1, {}, nullptr };
    size_t align = line.find(".align ");
    if (align != std::string::npos)
        v.alignment = (size_t)atoi(line.c_str() + align + 7);
    size_t values = line.find('='), head = values == std::string::npos ? line.size() : values;
    size_t bracket = line.find('['), name_end = bracket < head ? bracket : line.find_last_not_of(" \t\n", head - 1) + 1;
    size_t name = line.find_last_of(" \t", name_end - 1) + 1, type_end = line.find_last_not_of(" \t", name - 1) + 1;
    size_t type = line.rfind('.', type_end - 1) + 1;
    unsigned size = bytes_of(line.substr(type, type_end - type));
    v.bytes = size * (bracket < head ? (size_t)atoll(line.c_str() + bracket + 1) : 1);
    if (values != std::string::npos) {
        for (size_t k = values + 1; (k = line.find_first_of("-0123456789", k)) != std::string::npos;) {
            char *after;
            uint64_t number = line[k] == '0' && (line[k + 1] == 'f' || line[k + 1] == 'd' || line[k + 1] == 'F' ||
                                                 line[k + 1] == 'D') ?
                strtoull(line.c_str() + k + 2, &after, 16) : strtoull(line.c_str() + k, &after, 0);
            for (unsigned b = 0; b < size; b++)
                v.value.push_back((uint8_t)(number >> 8 * b));
            k = (size_t)(after - line.c_str());
        }
    }
    if (v.space != "shared") {
        v.memory.reset(new uint64_t[v.bytes / 8 + 1]());
        memcpy(v.memory.get(), v.value.data(), std::min(v.value.size(), v.bytes));
    }
    variables_[line.substr(name, name_end - name)] = std::move(v);
}

} // namespace ptx
