import tseslint from 'typescript-eslint';

export default tseslint.config(tseslint.configs.recommendedTypeChecked, {
  languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
  rules: {
    '@typescript-eslint/explicit-function-return-type': ['error', { allowExpressions: true }],
    '@typescript-eslint/no-floating-promises': 'error',
    complexity: ['error', 20], // it counts each `??` and `?.`
    eqeqeq: ['error', 'always', { null: 'ignore' }]
  }
});
