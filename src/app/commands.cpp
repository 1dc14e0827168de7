// The commands of the program, in the order of the help page.
#include "app/command.h"

namespace scalewright {

// One declaration and one line each; every factory is defined beside its command.
std::unique_ptr<Command> make_recover_command();
std::unique_ptr<Command> make_ptq_command();
std::unique_ptr<Command> make_train_command();
std::unique_ptr<Command> make_export_command();
std::unique_ptr<Command> make_convert_command();
std::unique_ptr<Command> make_verify_command();
std::unique_ptr<Command> make_parity_command();
std::unique_ptr<Command> make_eval_command();
std::unique_ptr<Command> make_compare_command();
std::unique_ptr<Command> make_generate_command();
std::unique_ptr<Command> make_prepare_command();
std::unique_ptr<Command> make_inspect_command();
std::unique_ptr<Command> make_config_command();
std::unique_ptr<Command> make_plan_command();
std::unique_ptr<Command> make_launch_command();
std::unique_ptr<Command> make_doctor_command();
std::unique_ptr<Command> make_completion_command();

std::vector<std::unique_ptr<Command>> all_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(make_recover_command());
  commands.push_back(make_ptq_command());
  commands.push_back(make_train_command());
  commands.push_back(make_eval_command());
  commands.push_back(make_compare_command());
  commands.push_back(make_generate_command());
  commands.push_back(make_prepare_command());
  commands.push_back(make_convert_command());
  commands.push_back(make_export_command());
  commands.push_back(make_verify_command());
  commands.push_back(make_parity_command());
  commands.push_back(make_inspect_command());
  commands.push_back(make_plan_command());
  commands.push_back(make_launch_command());
  commands.push_back(make_config_command());
  commands.push_back(make_doctor_command());
  commands.push_back(make_completion_command());
  return commands;
}

}  // namespace scalewright
