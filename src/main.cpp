// Entry point.
#include "app/command.h"

int main(int argc, char** argv) { return scalewright::run_program(argc, argv); }
