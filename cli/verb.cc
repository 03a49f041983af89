// SPDX-License-Identifier: Apache-2.0
#include "cli/verb.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace holdfast::cli {
namespace {

void Hide(CLI::Option* option, const std::string& help) {
  if (help.empty()) option->group("");
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
  app_->add_option(names, *value, help)->check(CLI::PositiveNumber);
}

void Verb::NonNegativeOption(const std::string& names, int64_t* value, const std::string& help) {
  app_->add_option(names, *value, help)->check(CLI::NonNegativeNumber);
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
