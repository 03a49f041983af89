// SPDX-License-Identifier: Apache-2.0
#include "cli/verb.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <system_error>
#include <utility>

namespace holdfast::cli {
namespace {

void Hide(CLI::Option* option, const std::string& help) {
  if (help.empty()) option->group("");
}

// CLI11's own checks print their limits as 300 digits.
CLI::Validator WholeNumberFrom(int64_t low) {
  return CLI::Validator(
      [low](std::string& text) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        return whole && value >= low ? ""
                                     : text + " is not a whole number from " + std::to_string(low);
      },
      "");
}

}  // namespace

void Verb::Positional(const std::string& name, std::string* value, const std::string& help) {
  app_->add_option(name, *value, help)->required();
}

void Verb::Option(const std::string& names, std::string* value, const std::string& help) {
  Hide(app_->add_option(names, *value, help), help);
}

void Verb::Required(const std::string& names, std::string* value, const std::string& help) {
  app_->add_option(names, *value, help)->required();
}

void Verb::Option(const std::string& names, int* value, const std::string& help) {
  app_->add_option(names, *value, help);
}

void Verb::Option(const std::string& names, uint64_t* value, const std::string& help) {
  app_->add_option(names, *value, help);
}

void Verb::PositiveOption(const std::string& names, uint64_t* value, const std::string& help) {
  app_->add_option(names, *value, help)->check(WholeNumberFrom(1));
}

void Verb::NonNegativeOption(const std::string& names, int64_t* value, const std::string& help) {
  app_->add_option(names, *value, help)->check(WholeNumberFrom(0));
}

void Verb::Option(const std::string& names, std::vector<std::string>* value,
                  const std::string& help) {
  app_->add_option(names, *value, help)->allow_extra_args(false);
}

void Verb::Option(const std::string& names, std::vector<uint32_t>* value, const std::string& help) {
  app_->add_option(names, *value, help)->allow_extra_args(false);
}

void Verb::Flag(const std::string& names, bool* value, const std::string& help) {
  Hide(app_->add_flag(names, *value, help), help);
}

void Verb::Flag(const std::string& names, std::function<void()> given, const std::string& help) {
  Hide(app_->add_flag_callback(names, std::move(given), help), help);
}

void Verb::Then(std::function<void()> parsed) { app_->callback(std::move(parsed)); }

}  // namespace holdfast::cli
